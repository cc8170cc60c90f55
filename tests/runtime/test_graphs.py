"""Which graphs are kept, what is copied around a replay, and what happens when a capture fails; with a backend that
only counts.
"""

from __future__ import annotations

import contextlib
import threading
import weakref
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.native import counters, load
from sfast_core.native.counters import Counters
from sfast_core.native.driver import CaptureStatus
from sfast_core.runtime import backend as runtime_backend
from sfast_core.runtime import failed_capture, memset_nodes
from sfast_core.runtime.backend import CudaBackend
from sfast_core.runtime.graphs import Captured, DeviceGraphs, device_graphs
from sfast_core.runtime.program import Layout, Program
from tests.fakes import FakeBackend

LAYOUT = Layout((2, 3), (3, 1), torch.float32, torch.device("cpu"))
PROGRAM = Program(run=lambda x, weight: (x * weight,), weights=(), constants=(), layouts=(LAYOUT,))
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


class FakeGraph:
    """A graph that writes down what is done with it."""

    def __init__(self, events: list[str], keep_graph: bool = False) -> None:
        self._events, self._ended = events, False
        self.instantiate = lambda: events.append("instantiate")
        self.told: Callable[[], str] = lambda: "reset"

    def capture_begin(self, **_: Any) -> None:
        self._events.append("begin")

    def capture_end(self) -> None:
        self._events.append("end")
        self._ended = True

    def pool(self) -> tuple[int, int]:
        if not self._ended:
            raise RuntimeError("Called CUDAGraph::pool() without a preceding successful capture.")
        return (0, 1)

    def raw_cuda_graph(self) -> int:
        return 1234

    def reset(self) -> None:
        self._events.append(self.told())
        self._ended = False


@pytest.fixture
def events(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a backend does, on a PyTorch that only writes it down."""
    if torch.cuda.is_available():
        # or what it sets up now would be undone with the patches, and the next test that needs it fail
        torch.cuda.init()
    events: list[str] = []
    stream = SimpleNamespace(wait_stream=lambda other: None, synchronize=lambda: None, cuda_stream=0, device_index=0)
    made: dict[str, Any] = {
        "Stream": lambda device: stream,
        "stream": lambda stream: contextlib.nullcontext(),
        "current_stream": lambda device: stream,
        "Event": lambda: None,
        "CUDAGraph": lambda: FakeGraph(events),
        "graph_pool_handle": lambda: (0, 1),
        "get_allocator_backend": lambda: "native",
    }
    for name, value in made.items():
        monkeypatch.setattr(torch.cuda, name, value)
    monkeypatch.setattr(torch._C, "_cuda_clearCublasWorkspaces", lambda: events.append("clear"), raising=False)
    monkeypatch.setattr(CudaBackend, "_touch", lambda self: None)
    for module in (failed_capture, runtime_backend):
        monkeypatch.setattr(module, "capture_status", lambda stream: CaptureStatus.ACTIVE)
    monkeypatch.setattr(failed_capture, "drop_capture", lambda stream: None)
    return events


@pytest.mark.parametrize(
    ("alone", "fails", "expected"),
    [
        (False, False, "run clear begin run clear end"),
        (True, False, "run begin run end"),
        (False, True, "run clear begin failed clear end reset"),
    ],
)
def test_a_graph_takes_workspaces_of_its_own(events: list[str], alone: bool, fails: bool, expected: str) -> None:
    """cuBLAS asks for them while the graph is captured, and gives them back before that ends.

    A timing graph lives too short to need it.
    """

    def run() -> None:
        if fails and "begin" in events:
            events.append("failed")
            raise RuntimeError("operation not permitted when stream is capturing")
        events.append("run")

    with pytest.raises(RuntimeError, match="not permitted") if fails else contextlib.nullcontext():
        CudaBackend(torch.device("cuda", 0)).capture(run, alone)
    assert " ".join(events) == expected


@pytest.fixture
def edits(events: list[str], monkeypatch: pytest.MonkeyPatch) -> SimpleNamespace:
    """A PyTorch that keeps graphs and an extension that edits them.

    ``spans`` are the counters it was told of, ``made`` all there were.
    """
    edits = SimpleNamespace(status=0, spans=[], made=[])

    def graph(keep_graph: bool) -> FakeGraph:
        assert keep_graph
        graph = FakeGraph(events)
        graph.told = lambda: f"reset with {len(alive(edits))}"
        return graph

    def make(device: torch.device) -> Counters:
        events.append(f"counters on {device}")
        made = Counters(torch.device("cpu"))
        edits.made.append(weakref.ref(made))
        return made

    def replace(graph: int, address: int, count: int, replaced: Any) -> int:
        events.append(f"replace in {graph}")
        edits.spans.append((address, count))
        return int(edits.status)

    library = SimpleNamespace(
        sfast_graph_replace_memsets=replace, sfast_error_name=lambda status: b"cudaErrorInvalidValue"
    )
    monkeypatch.setattr(torch.cuda, "CUDAGraph", graph)
    monkeypatch.setattr(counters, "Counters", make)
    monkeypatch.setattr(
        memset_nodes,
        "load",
        SimpleNamespace(why_not=lambda device: None, library=lambda: library, error_name=load.error_name),
    )
    return edits


def alive(edits: SimpleNamespace) -> list[Counters]:
    return [made for reference in edits.made if (made := reference()) is not None]


def take(count: int = 4) -> int | None:
    taken = counters.take(count, torch.device("cpu"))
    return None if taken is None else taken.data_ptr()


@pytest.mark.parametrize("status", [0, 1])
def test_memset_nodes_are_replaced_before_a_graph_is_instantiated(
    events: list[str], edits: SimpleNamespace, status: int
) -> None:
    """And a graph of which the extension wants to know nothing runs as it was captured."""
    edits.status = status
    CudaBackend(torch.device("cuda", 0)).capture(lambda: events.append("run"), alone=True)
    assert " ".join(events) == "counters on cuda:0 run begin run end replace in 1234 instantiate"
    assert edits.spans == [(0, 0)] and alive(edits) == []  # nobody wanted any


@pytest.mark.parametrize("alone", [False, True])
def test_counters_are_taken_before_a_capture_and_held_as_long_as_its_graph(
    events: list[str], edits: SimpleNamespace, monkeypatch: pytest.MonkeyPatch, alone: bool
) -> None:
    """Memory from within the capture would have been that of earlier results of the same graph.

    A timing graph has them, too.
    """
    taken: list[int | None] = []
    empty = torch.empty

    def allocate(*size: Any, **kind: Any) -> torch.Tensor:
        events.append("allocate")
        return empty(*size, **kind)

    monkeypatch.setattr(torch, "empty", allocate)
    replay = CudaBackend(torch.device("cuda", 0)).capture(lambda: taken.extend([take(), take()]), alone)
    order = " ".join(event for event in events if event != "clear")
    assert order == "counters on cuda:0 allocate begin end replace in 1234 instantiate"
    warm_up, captured = taken[:2], taken[2:]
    assert warm_up == [None, None] and take() is None
    assert (
        edits.spans == [(captured[0], 2 * counters.ALIGNMENT)]
        and captured[1] == (captured[0] or 0) + counters.ALIGNMENT
    )
    assert len(alive(edits)) == 1
    replay.release()
    assert events[-1] == "reset with 1" and alive(edits) == []


def test_each_graph_has_counters_of_its_own(edits: SimpleNamespace) -> None:
    backend = CudaBackend(torch.device("cuda", 0))
    graphs = [backend.capture(lambda: None if take() else None) for _ in range(2)]
    assert len({address for address, _ in edits.spans}) == len(graphs) == 2


def test_a_capture_that_failed_leaves_no_counters(events: list[str], edits: SimpleNamespace) -> None:
    def run() -> None:
        if take() is not None and len(edits.made) == 1:
            raise RuntimeError("operation not permitted when stream is capturing")

    backend = CudaBackend(torch.device("cuda", 0))
    with pytest.raises(RuntimeError, match="not permitted"):
        backend.capture(run)
    assert take() is None and alive(edits) == []
    backend.capture(run)
    assert [count for _, count in edits.spans] == [counters.ALIGNMENT]


def test_without_memory_for_counters_a_graph_is_captured_all_the_same(
    events: list[str], edits: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(device: torch.device) -> Counters:
        raise torch.cuda.OutOfMemoryError("full")

    monkeypatch.setattr(counters, "Counters", fail)
    CudaBackend(torch.device("cuda", 0)).capture(lambda: events.append(f"run {take()}"), alone=True)
    assert " ".join(events) == "run None begin run None end replace in 1234 instantiate" and edits.spans == [(0, 0)]


def test_a_graph_that_can_not_be_instantiated_was_captured_once(
    events: list[str], edits: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: out of memory")

    graph = FakeGraph(events)
    graph.instantiate = fail
    monkeypatch.setattr(torch.cuda, "CUDAGraph", lambda keep_graph: graph)
    with pytest.raises(RuntimeError, match="out of memory"):
        CudaBackend(torch.device("cuda", 0)).capture(lambda: events.append("run"), alone=True)
    assert " ".join(events) == "counters on cuda:0 run begin run end replace in 1234 reset" and alive(edits) == []


def test_a_pytorch_that_keeps_no_graph_captures_as_ever(events: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memset_nodes, "load", SimpleNamespace(why_not=lambda device: None))
    CudaBackend(torch.device("cuda", 0)).capture(lambda: events.append("run"), alone=True)
    assert " ".join(events) == "run begin run end"
