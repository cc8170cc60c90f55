"""Which graphs are kept, what is copied around a replay, and what happens when a capture fails; with a backend that
only counts.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from sfast_core.capture.live import Form
from sfast_core.runtime.captured import Captured
from sfast_core.runtime.graphs import DeviceGraphs, device_graphs
from sfast_core.runtime.program import Program
from tests.fakes import FakeBackend

FORM = Form((2, 3), (3, 1), torch.float32, torch.device("cpu"))
PROGRAM = Program(run=lambda x, weight: (x * weight,), weights=(), constants=(), forms=(FORM,))
INPUT_BYTES = OUTPUT_BYTES = 24
GRAPH_BYTES = 1000 + INPUT_BYTES + OUTPUT_BYTES


def capture(graphs: DeviceGraphs, factor: float = 2.0, budget: int | None = 10**9) -> Captured:
    weight = torch.tensor(factor)
    return graphs.capture([torch.ones(2, 3)], lambda inputs: PROGRAM(inputs, [weight]), budget)


def replay(graphs: DeviceGraphs, captured: Captured, value: float) -> list[torch.Tensor]:
    return graphs.replay(captured, [torch.full((2, 3), value)], PROGRAM.deliver)


def test_a_replay_copies_in_and_out() -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = capture(graphs)
    x = torch.full((2, 3), 5.0)
    (first,) = graphs.replay(captured, [x], PROGRAM.deliver)
    (second,) = replay(graphs, captured, 7.0)
    assert torch.equal(first, torch.full((2, 3), 10.0)) and torch.equal(second, torch.full((2, 3), 14.0))
    pool = {tensor.data_ptr() for tensor in (*captured.inputs, *captured.outputs)}
    assert not {x.data_ptr(), first.data_ptr(), second.data_ptr()} & pool and torch.equal(x, torch.full((2, 3), 5.0))
    assert graphs.backend.events == ["capture", *["enter", "replay", "leave"] * 2]


def test_the_shared_memory_is_left_when_a_delivery_fails() -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = capture(graphs)

    def fail(results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        raise RuntimeError("no memory for the result")

    with pytest.raises(RuntimeError, match="no memory for the result"):
        graphs.replay(captured, [torch.ones(2, 3)], fail)
    assert graphs.backend.events[-1] == "leave" and torch.equal(
        replay(graphs, captured, 1.0)[0], torch.full((2, 3), 2.0)
    )


@pytest.mark.parametrize(
    "x",
    [torch.randn(3, 2).t(), torch.randn(1, 3).expand(2, 3), torch.randn(2, 6)[:, ::2], torch.randn(4, 5)[1:3, 1:4]],
    ids=["transposed", "expanded", "every second", "a part"],
)
def test_inputs_of_any_layout(x: torch.Tensor) -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = graphs.capture([x], lambda inputs: PROGRAM(inputs, [torch.tensor(2.0)]), None)
    assert captured.inputs[0].shape == x.shape and captured.inputs[0].is_contiguous() is not (x.stride() == (1, 2))
    assert torch.equal(graphs.replay(captured, [x], PROGRAM.deliver)[0], x * 2)
    assert torch.equal(graphs.replay(captured, [x + 1], PROGRAM.deliver)[0], (x + 1) * 2)


def test_buffers_made_inside_inference_mode_serve_outside_too() -> None:
    graphs = DeviceGraphs(FakeBackend())
    with torch.inference_mode():
        captured = capture(graphs)
        inside = replay(graphs, captured, 3.0)[0]
    with torch.no_grad():
        outside = replay(graphs, captured, 4.0)[0]
    assert torch.equal(inside, torch.full((2, 3), 6.0)) and torch.equal(outside, torch.full((2, 3), 8.0))
    assert not any(tensor.is_inference() for tensor in (*captured.inputs, *captured.outputs))


def test_bytes_are_what_the_driver_lost_and_the_buffers() -> None:
    graphs = DeviceGraphs(FakeBackend(cost=1000))
    captured = capture(graphs)
    assert captured.bytes == graphs.bytes == GRAPH_BYTES
    graphs.release(captured)
    assert graphs.bytes == 0 and not captured.alive and captured.inputs == [] and captured.outputs == []


def test_the_least_recently_used_goes_first_when_the_budget_is_spent() -> None:
    graphs = DeviceGraphs(FakeBackend())
    budget = 3 * GRAPH_BYTES
    a, b, c = (capture(graphs, budget=budget) for _ in range(3))
    replay(graphs, a, 1.0)
    d = capture(graphs, budget=budget)
    assert [graph.alive for graph in (a, b, c, d)] == [True, False, True, True]
    assert graphs.backend.events[-2:] == ["synchronise", "trim"] and (graphs.captures, graphs.evictions) == (4, 1)


def test_a_graph_larger_than_the_budget_is_kept_alone() -> None:
    graphs = DeviceGraphs(FakeBackend())
    a = capture(graphs)
    b = capture(graphs, budget=1)
    assert not a.alive and b.alive and torch.equal(replay(graphs, b, 1.0)[0], torch.full((2, 3), 2.0))


def test_without_a_budget_a_third_of_what_is_free_may_be_held() -> None:
    graphs = DeviceGraphs(FakeBackend(free=2 * 3 * GRAPH_BYTES, cost=1000))
    kept = [capture(graphs, budget=None) for _ in range(4)]
    assert kept[-1].alive and graphs.bytes <= 3 * GRAPH_BYTES + GRAPH_BYTES


def test_the_host_may_evict_by_bytes() -> None:
    graphs = DeviceGraphs(FakeBackend())
    a, b, c = (capture(graphs) for _ in range(3))
    assert graphs.evict(0) == 0 and graphs.evict(GRAPH_BYTES + 1) == 2 * GRAPH_BYTES
    assert [graph.alive for graph in (a, b, c)] == [False, False, True]
    assert graphs.evict(10**9, keep=c) == 0 and graphs.release_all() == GRAPH_BYTES and graphs.release_all() == 0
    assert graphs.backend.events[-1] == "trim"


def test_a_released_graph_is_released_once() -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = capture(graphs)
    graphs.release_all()
    graphs.release(captured)
    assert graphs.evictions == 1


def test_out_of_memory_is_tried_again_with_all_others_released() -> None:
    backend = FakeBackend()
    graphs = DeviceGraphs(backend)
    old = capture(graphs)
    backend.failures = [torch.cuda.OutOfMemoryError("full")]
    new = capture(graphs)
    assert not old.alive and new.alive and graphs.bytes == new.bytes
    backend.failures = [torch.cuda.OutOfMemoryError("full"), torch.cuda.OutOfMemoryError("still full")]
    with pytest.raises(torch.cuda.OutOfMemoryError, match="still full"):
        capture(graphs)
    assert graphs.bytes == 0


def test_out_of_memory_with_nothing_to_release_is_told_at_once() -> None:
    backend = FakeBackend()
    backend.failures = [torch.cuda.OutOfMemoryError("full")]
    with pytest.raises(torch.cuda.OutOfMemoryError, match="full"):
        capture(DeviceGraphs(backend))
    assert backend.events == ["failed capture"]


def test_a_graph_in_the_place_of_another_takes_over_its_memory() -> None:
    """The caches of the host aren't emptied for it."""
    backend = FakeBackend()
    graphs = DeviceGraphs(backend)
    old, other = capture(graphs), capture(graphs)
    backend.cost = 0  # it works in the old one's memory
    new = graphs.capture([torch.ones(2, 3)], lambda inputs: PROGRAM(inputs, [torch.tensor(3.0)]), None, instead_of=old)
    assert (
        not old.alive
        and other.alive
        and new.bytes == GRAPH_BYTES
        and graphs.bytes == 2 * GRAPH_BYTES
        and graphs.evictions == 0
    )
    assert not any(event.startswith("trim") for event in backend.events)
    assert torch.equal(replay(graphs, new, 2.0)[0], torch.full((2, 3), 6.0))
    again = graphs.capture(
        [torch.ones(2, 3)], lambda inputs: PROGRAM(inputs, [torch.tensor(4.0)]), None, instead_of=old
    )
    assert again.alive and new.alive


def test_another_failure_leaves_the_others_alone() -> None:
    backend = FakeBackend()
    graphs = DeviceGraphs(backend)
    old = capture(graphs)
    backend.failures = [RuntimeError("operation not permitted when stream is capturing")]
    with pytest.raises(RuntimeError, match="not permitted"):
        capture(graphs)
    assert old.alive and graphs.captures == 1


def test_threads_get_their_own_results() -> None:
    graphs = DeviceGraphs(FakeBackend())
    captured = [capture(graphs, factor) for factor in (2.0, 3.0)]
    wrong: list[str] = []

    def work(number: int) -> None:
        for step in range(30):
            value = float(number * 100 + step)
            (result,) = replay(graphs, captured[number % 2], value)
            if not torch.equal(result, torch.full((2, 3), value * (2 + number % 2))):
                wrong.append(f"thread {number}, step {step}")

    threads = [threading.Thread(target=work, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_only_a_cuda_device_has_graphs() -> None:
    assert device_graphs(torch.device("cpu")) is None and device_graphs(torch.device("meta")) is None
