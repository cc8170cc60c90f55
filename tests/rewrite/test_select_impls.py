"""Lowering: which impls a call may go to, asked once for calls that look the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph

from sfast_core.ops.spec import Impl, Op
from sfast_core.rewrite import has_impl, select_impls
from tests.targets import H100


def _double(x: torch.Tensor, by: Any = 2) -> torch.Tensor:
    return x * by


class _Asked(Impl):
    """Counts what it is asked; can't compute tensors of more than 8 elements."""

    def against(self, target: Any, call: Any) -> str | None:
        ASKED.append(call)
        return "too large" if call.x.numel() > 8 else None

    @property
    def launch(self) -> Callable[..., Any]:
        return torch.mul


ASKED: list[Any] = []
OP = Op("double", _double, (_Asked("fast", ".nowhere", __package__),))


@pytest.fixture(autouse=True)
def nothing_asked() -> None:
    ASKED.clear()


def graph_of(*calls: tuple[torch.Tensor, tuple[Any, ...], dict[str, Any]]) -> Graph:
    graph = Graph()
    for val, more, named in calls:
        x = graph.placeholder("x")
        x.meta["val"] = val
        graph.call_function(_double, (x, *more), named)
    graph.output(())
    return graph


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def test_calls_that_look_the_same_are_asked_for_once() -> None:
    small, large = meta(2, 4), meta(4, 4)
    graph = graph_of(*[(small, (), {}), (large, (), {})] * 5)
    selection = select_impls(graph, [OP], H100, (), None)
    assert len(ASKED) == 2 and selection.chosen["double"] == {"fast": 5, "reference": 5}
    assert selection.refused["double"] == {"fast": "fast: too large"}


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ((meta(2, 4), (), {}), (meta(2, 4).t(), (), {})),
        ((meta(2, 4), (), {}), (meta(2, 4, dtype=torch.float16), (), {})),
        ((meta(9)[1:], (), {}), (meta(8), (), {})),
        ((meta(8), (1,), {}), (meta(8), (True,), {})),
        ((meta(8), ([1, 1],), {}), (meta(8), ([1, 2],), {})),
        ((meta(8), (), {"by": 2}), (meta(8), (), {})),
    ],
    ids=["strides", "dtype", "offset", "type", "list", "keyword"],
)
def test_calls_that_differ_are_asked_for_each(first: Any, second: Any) -> None:
    select_impls(graph_of(first, second), [OP], H100, (), None)
    assert len(ASKED) == 2


def test_where_a_call_begins_matters_within_8_elements() -> None:
    """The prompt's keys and values of every layer are parts of one tensor."""
    select_impls(graph_of(*[(meta(32)[start : start + 8], (), {}) for start in (0, 8, 16, 24)]), [OP], H100, (), None)
    assert len(ASKED) == 1
    select_impls(graph_of(*[(meta(32)[start : start + 8], (), {}) for start in (0, 4, 20, 6)]), [OP], H100, (), None)
    assert len(ASKED) == 1 + 3


def test_a_pass_is_told_whether_any_impl_can() -> None:
    refused: dict[str, dict[str, str]] = {}
    can = has_impl([OP], H100, (), refused)
    assert [can(_double, meta(8)), can(_double, meta(9)), can(_double, meta(8))] == [True, False, True]
    assert len(ASKED) == 2 and refused == {"double": {"fast": "fast: too large"}}
    assert not has_impl([OP], H100, ("double.*",), refused)(_double, meta(8))


def test_an_impl_stands_behind_another_for_those_calls_that_it_says() -> None:
    large = lambda call: call.x.numel() > 4  # noqa: E731
    op = Op(
        "double",
        _double,
        (_Asked("slow", ".nowhere", __package__, superseded_by=("fast",), superseded_if=large), *OP.impls),
    )
    never = Op("double", _double, (_Asked("slow", ".nowhere", __package__, superseded_by=("fast",)), *OP.impls))

    def candidates(op: Op, elements: int, disabled: tuple[str, ...] = ()) -> list[str]:
        graph, found = Graph(), []
        x = graph.placeholder("x")
        x.meta["val"] = torch.empty(elements, device="meta")
        graph.output(graph.call_function(_double, (x,)))
        select_impls(
            graph,
            [op],
            H100,
            disabled,
            lambda calls: found.extend(impl.name for impl in calls[0].impls) or ["reference"],
        )
        return found

    assert candidates(op, 4) == ["slow", "fast"] and candidates(op, 5) == ["fast"] and candidates(never, 4) == ["fast"]
    assert candidates(op, 5, disabled=("double.fast",)) == ["slow"], "there is none to stand behind"
