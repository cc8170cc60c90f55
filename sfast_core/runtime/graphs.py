"""CUDA graphs on one device: how one is captured, replayed and given back, and how many may be kept.

All graphs of a device share one memory pool and one lock, because their intermediate results share memory: one replay at a time, its
inputs copied in and its results copied out before the next. Bytes are what the driver lost, not what torch counted: under cudaMallocAsync
torch's counters don't move at capture.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ..forks import renew_in_children
from ..native import counters
from ..native.counters import Counters
from ..native.driver import CaptureStatus, capture_status
from .collector import collector_paused
from .failed_capture import check_capture, clear_frames, tensors_of, undo_capture
from .memset_nodes import editable_graph, instantiate_without_memsets
from .rehearsal import Rehearsal

Tensors = Sequence[torch.Tensor]


class Replayable(Protocol):
    """A captured computation: ``replay`` reads and writes the buffers that it was captured on."""

    def replay(self) -> None: ...

    def release(self) -> None: ...


class Backend(Protocol):
    """What captures. The CUDA one is below; tests have one that only counts."""

    def capture(self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None) -> Replayable: ...

    def scratch(self) -> contextlib.AbstractContextManager[None]: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def free_bytes(self) -> int: ...

    def synchronise(self) -> None: ...

    def trim(self) -> None: ...


class _CudaReplay:
    def __init__(self, graph: torch.cuda.CUDAGraph, counted: Counters | None) -> None:
        self._graph = graph
        self._counted = counted  # the graph's kernels write there
        self.alive = True

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        self.alive = False
        self._graph.reset()
        self._counted = None


class CudaBackend:
    """Captures on a side stream of its own.

    cuBLAS's workspaces are taken from the graph's own pool. PyTorch keeps one for each thread and stream, and a graph that was captured with
    such a one reads freed memory as soon as anybody clears them: torch.compile's graphs do so for all streams, and in newer versions the end
    of any graph for the stream that it was captured on (pytorch/pytorch#193402).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._scratch: Any = None
        self._idle = torch.cuda.Event()
        self._in_pool: weakref.WeakSet[_CudaReplay] = weakref.WeakSet()
        self._touched: torch.Tensor | None = None  # memory for a kernel that does nothing else
        self._kept: list[Any] = []  # what a failed capture left behind that must not go

    def capture(self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None) -> Replayable:
        """Warm up, then run once into a graph.

        Args:
            run: the computation. What it allocates must be gone when it returns: under cudaMallocAsync, freeing such memory later ends
                the process.
            alone: in memory of its own or in the :meth:`scratch` rather than in the shared pool, to be replayed and released at once.
            warm_up: what needs to have run before, if not ``run`` itself.

        Raises:
            RuntimeError: the computation can't be captured, or memory ran out.
        """
        if self._pool is None or not any(replay.alive for replay in self._in_pool):
            # A pool ends with its last graph, and nothing can be captured into it from then on.
            self._pool, self._in_pool = torch.cuda.graph_pool_handle(), weakref.WeakSet()
        pool = self._pool if not alone else self._scratch or torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        editable = editable_graph(self._device)
        # Not in the capture: memory from the graph's pool may have been that of an earlier kernel's results, written behind the zeros.
        counted = None if editable is None else counters.allocate(self._device)
        self._stream.wait_stream(current)
        # A graph freed by the collector in the middle of a capture would break it.
        with collector_paused(), torch.cuda.stream(self._stream):
            (warm_up or run)()
            self._touch()
            self._stream.synchronize()
            clear_workspaces = _nothing if alone else _clear_workspaces
            clear_workspaces()
            graph = editable or torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                with counters.handed_out(counted):
                    run()
                clear_workspaces()  # while it is captured: cudaMallocAsync takes such memory back within the capture only
                check_capture(self._stream)
                graph.capture_end()
                if editable is not None:
                    instantiate_without_memsets(editable, (0, 0) if counted is None else counted.span)
            except BaseException as error:
                self._undo(error, graph, pool, clear_workspaces)
                raise
        current.wait_stream(self._stream)
        replay = _CudaReplay(graph, counted if counted is not None and counted.used else None)
        if not alone:
            self._in_pool.add(replay)
        return replay

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """While it lasts, graphs captured ``alone`` work one after the other in the same memory.

        Each in its own, SD1.5's first call took 8.5 GiB to measure its kernels in, and takes 2.2 so; and a graph took 0.6 ms more (H100).
        """
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_scratch", None)
            self._scratch = torch.cuda.graph_pool_handle()
            try:  # a pool ends with its last graph
                stack.callback(self.capture(lambda: torch.zeros(1, device=self._device), alone=True).release)
            except RuntimeError:  # the next capture says why
                self._scratch = None
            yield

    def _touch(self) -> None:
        """Launch a kernel, on memory that was there before."""
        if self._touched is None:
            with torch.inference_mode(False):
                self._touched = torch.zeros(1, device=self._device)
        self._touched.fill_(0.0)

    def _undo(self, error: BaseException, graph: torch.cuda.CUDAGraph, pool: Any, clear_workspaces: Callable[[], None]) -> None:
        """Leave nothing of a capture that failed with ``error``. Whoever interrupts this does so once it is done."""
        interrupt: KeyboardInterrupt | None = None
        whole: bool | None = None
        lost = False
        while whole is None:
            try:
                with torch.cuda.stream(self._stream):  # what was captured may have left another one
                    if _frees_end_the_process(self._stream):
                        self._kept += tensors_of(error)
                        lost = True
                    else:  # what was allocated goes while the capture still takes it back
                        clear_frames(error)
                        clear_workspaces()
                    whole = undo_capture(graph, pool, self._stream, self._touch)
            except KeyboardInterrupt as another:
                interrupt = another
        if not whole:
            self._kept.append(graph)
            self._pool = self._scratch = None
        if not whole or lost:  # the next work there would have cuBLAS's workspace
            self._stream = torch.cuda.Stream(self._device)
        if interrupt is not None:
            raise interrupt

    def enter(self) -> None:
        """Let the caller's stream wait until the last user of the shared memory is done: it may have been another stream."""
        torch.cuda.current_stream(self._device).wait_event(self._idle)

    def leave(self) -> None:
        """Mark the end of this use of the shared memory."""
        self._idle.record(torch.cuda.current_stream(self._device))

    def free_bytes(self) -> int:
        """Bytes that the driver has free."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def synchronise(self) -> None:
        """Wait for the device: a graph in flight can't be freed."""
        torch.cuda.synchronize(self._device)

    def trim(self) -> None:
        """Give what released graphs held back to the driver; without the trim cudaMallocAsync keeps it."""
        torch.cuda.empty_cache()
        trim = getattr(torch.cuda.cudart(), "cudaDeviceGraphMemTrim", None)
        if trim is not None:
            trim(self._device.index)


def _clear_workspaces() -> None:
    """Let cuBLAS take new workspaces from now on, where this PyTorch has a way to."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)()


def _nothing() -> None:
    """In place of a call that isn't wanted."""


def _static(x: torch.Tensor) -> torch.Tensor:
    """Memory for what is like ``x``: with dense strides kept and overlapping ones made dense, lazily conjugated or negated where ``x`` is."""
    static = torch.empty_like(x)
    static = static.conj() if x.is_conj() else static
    return torch._neg_view(static) if x.is_neg() else static


def _frees_end_the_process(stream: torch.cuda.Stream) -> bool:
    """Whether cudaMallocAsync would be asked to take memory back on a stream whose capture is invalid: its error comes from a destructor."""
    return torch.cuda.get_allocator_backend() == "cudaMallocAsync" and capture_status(stream.cuda_stream) is not CaptureStatus.ACTIVE


class Captured:
    """A graph with its static inputs and outputs, which lie outside its pool. ``alive`` turns False when it is evicted.

    Args:
        backend: captures it.
        inputs: of the call.
        run: the computation.
        rehearse: whether it isn't known yet that it can be captured.

    Raises:
        RuntimeError: it can't be.
    """

    def __init__(self, backend: Backend, inputs: Tensors, run: Callable[[Tensors], Tensors], rehearse: bool = True) -> None:
        with torch.inference_mode(False):  # inference tensors refuse writes outside inference mode
            self.inputs = [_static(x) for x in inputs]
        self.outputs: list[torch.Tensor] = []
        self.watch: weakref.finalize[..., Any] | None = None
        self._copy_in(inputs)
        before = backend.free_bytes()
        self._replayable = backend.capture(lambda: self._copy_out(run(self.inputs)), warm_up=self._rehearsal(run) if rehearse else None)
        self.bytes = max(0, before - backend.free_bytes()) + sum(x.nbytes for x in (*self.inputs, *self.outputs))
        self.alive = True

    def replay(self, inputs: Tensors) -> Tensors:
        """Results for ``inputs``, in memory that the next replay overwrites."""
        self._copy_in(inputs)
        self._replayable.replay()
        return self.outputs

    def release(self) -> None:
        """Give the graph's memory back."""
        self.alive = False
        if self.watch is not None:
            self.watch.detach()
        self._replayable.release()
        self.inputs, self.outputs = [], []

    def _rehearsal(self, run: Callable[[Tensors], Tensors]) -> Callable[[], None]:
        def rehearse() -> None:
            with Rehearsal():
                self._copy_out(run(self.inputs))

        return rehearse

    def _copy_out(self, results: Tensors) -> None:
        if not self.outputs:  # the warm-up makes them, outside the capture
            with torch.inference_mode(False):
                self.outputs = [torch.empty_like(result) for result in results]
        for mine, theirs in zip(self.outputs, results, strict=True):
            mine.copy_(theirs)

    def _copy_in(self, inputs: Tensors) -> None:
        for mine, theirs in zip(self.inputs, inputs, strict=True):
            mine.copy_(theirs)


class DeviceGraphs:
    """The captured graphs of one device: a lock, a budget in bytes, least recently used goes first."""

    def __init__(self, backend: Backend) -> None:
        self.lock = threading.RLock()
        renew_in_children(self)
        self.backend = backend
        self._graphs: OrderedDict[int, Captured] = OrderedDict()
        self._of_the_parent: list[Captured] = []
        self.captures = 0
        self.evictions = 0

    def renew(self) -> None:
        """In a forked child: the thread that holds the lock isn't there, and the graphs are the parent's, who alone can release them."""
        self.lock = threading.RLock()
        for graph in self._graphs.values():
            graph.alive = False
        self._of_the_parent += self._graphs.values()
        self._graphs.clear()

    @property
    def bytes(self) -> int:
        """What all graphs hold."""
        return sum(graph.bytes for graph in self._graphs.values())

    def capture(
        self,
        inputs: Tensors,
        run: Callable[[Tensors], Tensors],
        budget_bytes: int | None,
        owner: object = None,
        instead_of: Captured | None = None,
    ) -> Captured:
        """Capture ``run`` on static copies of ``inputs``, and evict others until the budget holds.

        Args:
            inputs: of the call.
            run: the computation.
            budget_bytes: what all graphs may hold; None: what they hold and a third of what is free.
            owner: an object that isn't held, with which the graph goes: the compiled state of a model that is deleted.
            instead_of: a graph of the same computation, which is released. The new one works in its memory.

        Raises:
            RuntimeError: it can't be captured; an out-of-memory is tried once more with all other graphs released.
        """
        with self.lock:
            budget = self.bytes + self.backend.free_bytes() // 3 if budget_bytes is None else budget_bytes
            try:
                captured = Captured(self.backend, inputs, run, rehearse=instead_of is None)
            except torch.cuda.OutOfMemoryError:
                if not self.release_all():
                    raise
                captured = Captured(self.backend, inputs, run)
            self.captures += 1
            if instead_of is not None and instead_of.alive:  # not trimmed: the host's caches would go with it, at every LoRA
                captured.bytes = max(captured.bytes, instead_of.bytes)
                self.backend.synchronise()
                self._graphs.pop(id(instead_of)).release()
            self._graphs[id(captured)] = captured
            if owner is not None:
                captured.watch = weakref.finalize(owner, self.release, captured)
                captured.watch.atexit = False
            self.evict(self.bytes - budget, keep=captured)
            return captured

    def replay(self, captured: Captured, inputs: Tensors, deliver: Callable[[Tensors], list[torch.Tensor]]) -> list[torch.Tensor]:
        """Copy ``inputs`` in, replay, and ``deliver`` copies of the results, alone on the device's graphs."""
        with self.lock:
            self._graphs.move_to_end(id(captured))
            self.backend.enter()
            try:
                return deliver(captured.replay(inputs))
            finally:
                self.backend.leave()

    def evict(self, wanted_bytes: int, keep: Captured | None = None) -> int:
        """Release least recently used graphs until ``wanted_bytes`` are free; returns the bytes released."""
        with self.lock:
            victims, freed = [], 0
            for graph in self._graphs.values():
                if freed >= wanted_bytes:
                    break
                if graph is not keep:
                    victims.append(graph)
                    freed += graph.bytes
            self._release(victims)
            return freed

    def release(self, captured: Captured) -> None:
        """Release one graph."""
        with self.lock:
            if captured.alive:
                self._release([captured])

    def release_all(self) -> int:
        """Release every graph; returns the bytes released."""
        with self.lock:
            freed = self.bytes
            self._release(list(self._graphs.values()))
            return freed

    def _release(self, victims: list[Captured]) -> None:
        if not victims:
            return
        self.backend.synchronise()
        for graph in victims:
            self._graphs.pop(id(graph), None)
            graph.release()
            self.evictions += 1
        self.backend.trim()


@functools.cache
def device_graphs(device: torch.device) -> DeviceGraphs | None:
    """The graphs of a CUDA device: one object per device, since its pool and its lock are shared by all compiled modules.

    None for any other device: nothing is captured there.
    """
    return DeviceGraphs(CudaBackend(device)) if device.type == "cuda" else None
