"""How a graph is captured: its workspaces, its memset nodes, and the counters in their place."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable
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
        "memory_reserved": lambda device: 0,
        "memory_allocated": lambda device: 0,
        "mem_get_info": lambda device: (1 << 40, 1 << 40),
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


@pytest.mark.parametrize(
    ("free", "expected"),
    [
        (9 << 30, "run clear begin run clear end"),
        (2 << 30, "run clear empty begin run clear end"),
        (1 << 28, "run clear empty took empty begin run clear end"),
    ],
)
def test_room_is_made_before_a_capture(
    events: list[str], monkeypatch: pytest.MonkeyPatch, free: int, expected: str
) -> None:
    """For what the warm-up took, of which the allocator gives a graph's pool nothing: within a capture nobody's memory
    can be taken away, and where ComfyUI's dynamic VRAM tried, the capture failed for good.
    """
    kept = 2 << 30
    state = {"free": free, "kept": kept}

    def empty_cache() -> None:
        events.append("empty")
        state["free"], state["kept"] = state["free"] + state["kept"], 0

    def empty(size: int, dtype: torch.dtype, device: torch.device) -> None:
        events.append("took")
        assert size > kept, "the host makes room for it by taking others' away"
        raise torch.cuda.OutOfMemoryError

    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda device: state["kept"])
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (state["free"], 1 << 40))
    monkeypatch.setattr(torch.cuda, "empty_cache", empty_cache)
    monkeypatch.setattr(torch, "empty", empty)
    CudaBackend(torch.device("cuda", 0)).capture(lambda: events.append("run"))
    assert " ".join(events) == expected
