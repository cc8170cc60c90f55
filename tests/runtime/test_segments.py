"""Programs that are cut: what is captured, what lies between, and what others may do to the graphs meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.fx import Graph

from sfast_core.capture.functional import element
from sfast_core.capture.live import AnotherStructure, Form, LiveCall, Surroundings
from sfast_core.capture.live.lent import Handing
from sfast_core.capture.live.structure import pattern_of
from sfast_core.capture.live.template import TensorAt, TupleOf
from sfast_core.runtime.captured_segments import CapturedSegments, Evicted
from sfast_core.runtime.graphs import DeviceGraphs
from sfast_core.runtime.segments import Body, Live, Stretch, cut, interpret
from tests.fakes import FakeBackend

X = torch.arange(4.0)


class Where:
    """Live code that a test has."""

    key = name = "theirs"

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def find(self, around: Surroundings) -> Callable[..., Any]:
        return self.function


def body(function: Callable[..., Any]) -> Body:
    """``function((x + 1) * 2)``, times 3, plus x + 1."""
    graph = Graph()
    x = graph.placeholder("x")
    one = graph.call_function(torch.add, (x, 1))
    two = graph.call_function(torch.mul, (one, 2))
    form = Form.of(X)
    arguments = TupleOf((TupleOf((TensorAt(0),)), _Nothing()))
    call = LiveCall(
        Where(function), arguments, Handing((form,)), pattern_of(X, Surroundings(), [X]), (form,), (), frozenset({0})
    )
    live = graph.call_function(call, ((two,), ()))
    result = graph.call_function(element, (live, 0))
    result.meta["val"], result.meta["device"] = X.to("meta"), X.device
    three = graph.call_function(torch.mul, (result, 3))
    graph.output((graph.call_function(torch.add, (three, one)),))
    return cut(graph, lambda node: None, lambda call: [])


class _Nothing(TupleOf):
    """No keyword arguments."""

    def __init__(self) -> None:
        super().__init__(())

    def fill(self, by: Any) -> Any:
        return {}


def nothing(index: int) -> None:
    """It reads no weights."""
    raise AssertionError(index)


def expected(x: torch.Tensor, function: Callable[..., Any]) -> torch.Tensor:
    result: torch.Tensor = function((x + 1) * 2) * 3 + x + 1
    return result


def test_a_graph_is_cut_where_live_code_runs() -> None:
    found = body(lambda x: x)
    first, live, last = found.parts
    assert isinstance(first, Stretch) and isinstance(live, Live) and isinstance(last, Stretch)
    assert (
        len(first.instructions) == 2 and len(first.writes) == 2 and len(last.instructions) == 2 and len(last.reads) == 2
    )
    assert found.stretches() == 2 and [each.name for each in found.all_lives()] == ["theirs"]


def test_kernel_by_kernel() -> None:
    (result,) = interpret(body(torch.square), [X], [], Surroundings())
    assert torch.equal(result, expected(X, torch.square))


def test_each_stretch_is_captured_once_and_replayed() -> None:
    graphs = DeviceGraphs(FakeBackend())
    steps = iter(range(10))
    segments = CapturedSegments(body(lambda x: x + next(steps)), graphs)
    for step in range(3):
        x = torch.randn(4)
        results = (
            segments.capture([x], Surroundings(), nothing) if step == 0 else segments.run([x], Surroundings(), nothing)
        )
        assert torch.allclose(results[0], expected(x, lambda y, step=step: y + step))
    assert graphs.backend.events.count("capture") == 2 and graphs.backend.events.count("replay") == 4  # type: ignore[attr-defined]
    assert segments.bytes > 0


def test_the_first_stretch_may_run_ahead() -> None:
    graphs, seen = DeviceGraphs(FakeBackend()), []
    segments = CapturedSegments(body(lambda x: (seen.append(1), x)[1]), graphs)
    segments.capture([X], Surroundings(), nothing)
    y = torch.randn(4)
    segments.body.copy_in([y])
    segments.body.replay_first()
    assert len(seen) == 1
    assert (
        torch.allclose(segments.run([y], Surroundings(), nothing, replayed=True)[0], expected(y, lambda x: x))
        and len(seen) == 2
    )


def test_what_it_is_handed_is_its_own() -> None:
    kept: list[torch.Tensor] = []
    segments = CapturedSegments(body(lambda x: (kept.append(x), x.clone())[1]), DeviceGraphs(FakeBackend()))
    for number in range(3):
        segments.run([X + number], Surroundings(), nothing)
    assert [float(each[0]) for each in kept] == [2.0, 4.0, 6.0]


def test_graphs_that_are_being_run_are_not_evicted() -> None:
    graphs = DeviceGraphs(FakeBackend())
    freed: list[int] = []
    segments = CapturedSegments(
        body(lambda x: (freed.append(graphs.release_all() + graphs.evict(10**9)), x)[1]), graphs
    )
    graphs.adopt(lambda: (segments, segments.capture([X], Surroundings(), nothing)), None, None)
    assert torch.equal(segments.run([X], Surroundings(), nothing)[0], expected(X, lambda x: x)) and freed[-1] == 0
    assert graphs.release_all() == segments.bytes and not segments.alive


def test_graphs_that_go_while_live_code_runs() -> None:
    segments = CapturedSegments(body(lambda x: (segments.release(), x)[1]), DeviceGraphs(FakeBackend()))
    with pytest.raises(Evicted):
        segments.run([X], Surroundings(), nothing)


@pytest.mark.parametrize("function", [lambda x: x[:2], lambda x: (x, x), lambda x: x.double(), lambda x: None])
def test_another_structure(function: Callable[..., Any]) -> None:
    with pytest.raises(AnotherStructure, match="theirs returns something built otherwise"):
        interpret(body(function), [X], [], Surroundings())


def test_other_strides_are_no_other_structure() -> None:
    (result,) = interpret(body(lambda x: torch.stack([x, x], 1)[:, 0]), [X], [], Surroundings())
    assert torch.equal(result, expected(X, lambda x: x))
