"""Operators of libraries that change their arguments, recorded as functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Untraceable
from sfast_core.capture.changing import Changing, functional_sibling
from tests.models import Forward
from tests.tracing import check_recording, trace, try_record

NAME = "fast_compile_changing"


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    library = torch.library.Library(NAME, "DEF")
    library.define("turn_(Tensor(a!) q, Tensor(b!) k, Tensor by, float scale=1.0) -> ()")
    library.define("grow_(Tensor(a!) x) -> Tensor(a!)")

    def turn(q: torch.Tensor, k: torch.Tensor, by: torch.Tensor, scale: float = 1.0) -> None:
        q.mul_(by * scale)
        k.add_(by)

    library.impl("turn_", turn, "CPU")
    library.impl("grow_", lambda x: x.mul_(2), "CPU")
    yield library


def turn_(*args: Any, **kwargs: Any) -> None:
    getattr(torch.ops, NAME).turn_(*args, **kwargs)


def both(net: Any, x: torch.Tensor) -> Any:
    q, k = net.lin(x), net.lin(x + 1)
    turn_(q, k, x, scale=2.0)
    return q, k


def by_name(net: Any, x: torch.Tensor) -> Any:
    q, k = net.lin(x), net.lin(x + 1)
    turn_(q, by=x, k=k)
    return q + k


def views(net: Any, x: torch.Tensor) -> Any:
    """As MiniMax H3 turns queries and keys of one projection."""
    both = net.lin(x)
    q, k = both.unflatten(-1, (2, 4)).unbind(1)
    turn_(q, k, x[:, :4])
    return both, q * 2


RECORDED: dict[str, Callable[..., Any]] = {"two tensors": both, "by name": by_name, "views of one tensor": views}


@pytest.mark.parametrize("name", RECORDED)
def test_what_it_leaves_is_recorded(name: str) -> None:
    check_recording(Forward(RECORDED[name], lin=nn.Linear(8, 8)), torch.randn(4, 8))


def test_calls_of_one_operator_with_the_same_arguments_are_alike() -> None:
    graph = trace(Forward(lambda net, x: (both(net, x), both(net, x)), lin=nn.Linear(8, 8)), torch.randn(4, 8)).graph
    first, second = (node.target for node in graph.nodes if isinstance(node.target, Changing))
    assert first == second and hash(first) == hash(second) and first != Changing(turn_, (0,))


REFUSED: dict[str, tuple[Callable[..., Any], str]] = {
    "it returns something": (
        lambda net, x: getattr(torch.ops, NAME).grow_(net.lin(x)),
        "changes its arguments and returns something",
    ),
    "two that share elements": (
        lambda net, x: (lambda y: (turn_(y[:3], y[1:], x[:3]), y)[1])(net.lin(x)),
        "changes two tensors that share elements",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    way, words = REFUSED[name]
    _, found = try_record(Forward(way, lin=nn.Linear(8, 8)), torch.randn(4, 8))
    assert isinstance(found, Untraceable) and words in found.reason


def test_under_autocast_it_is_refused() -> None:
    def way(net: Any, x: torch.Tensor) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return both(net, x.bfloat16())

    _, found = try_record(Forward(way, lin=nn.Linear(8, 8).bfloat16()), torch.randn(4, 8))
    assert isinstance(found, Untraceable) and "under autocast" in found.reason


def test_the_kitchens_operators_have_functions() -> None:
    """Those that return what they write, with the same arguments."""

    def of_two(q: torch.Tensor, k: torch.Tensor, factors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return q * factors, k * factors

    def in_place(q: torch.Tensor, k: torch.Tensor, factors: torch.Tensor) -> None:
        q.mul_(factors)
        k.mul_(factors)

    if not hasattr(torch.ops.comfy_kitchen, "test_turn"):
        torch.library.custom_op("comfy_kitchen::test_turn", of_two, mutates_args=())
        torch.library.custom_op("comfy_kitchen::test_turn_", in_place, mutates_args={"q", "k"})
    operator = torch.ops.comfy_kitchen.test_turn_
    assert (
        functional_sibling(operator, 2) is torch.ops.comfy_kitchen.test_turn and functional_sibling(operator, 1) is None
    )
    assert functional_sibling(getattr(torch.ops, NAME).turn_, 2) is None

    def way(net: Any, x: torch.Tensor) -> Any:
        q, k = net.lin(x).chunk(2, -1)
        operator(q, k, x[:, :4])
        return q + k

    module = Forward(way, lin=nn.Linear(8, 8))
    check_recording(module, torch.randn(4, 8))
    assert any(
        node.target is torch.ops.comfy_kitchen.test_turn for node in trace(module, torch.randn(4, 8)).graph.nodes
    )
