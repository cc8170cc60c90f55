"""CUDA graphs on one device: how one is captured, replayed and given back, and how many may be kept.

All graphs of a device share one memory pool and one lock, because their intermediate results share memory: one replay at a time, its
inputs copied in and its results copied out before the next. Bytes are what the driver lost, not what torch counted: under cudaMallocAsync
torch's counters don't move at capture.
"""

from __future__ import annotations

import contextlib
import functools
import threading
import traceback
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Protocol

import torch

from ..forks import renew_in_children
from ..native import counters
from ..native.counters import Counters
from .collector import collector_paused
from .memset_nodes import editable_graph, instantiate_without_memsets

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

    def trim(self, none_left: bool) -> None: ...


class _CudaReplay:
    def __init__(self, graph: torch.cuda.CUDAGraph, counted: Counters | None) -> None:
        self._graph = graph
        self._counted = counted  # the graph's kernels write there

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
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
        if self._pool is None:
            self._pool = torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        editable = editable_graph(self._device)
        # Not in the capture: memory from the graph's pool may have been that of an earlier kernel's results, written behind the zeros.
        counted = None if editable is None else counters.allocate(self._device)
        self._stream.wait_stream(current)
        # A graph freed by the collector in the middle of a capture would break it.
        with collector_paused(), torch.cuda.stream(self._stream):
            (warm_up or run)()
            self._stream.synchronize()
            clear_workspaces = _nothing if alone else _clear_workspaces
            clear_workspaces()
            graph = editable or torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=self._scratch if alone else self._pool, capture_error_mode="thread_local")
                with counters.handed_out(counted):
                    run()
                clear_workspaces()  # while it is captured: cudaMallocAsync takes such memory back within the capture only
                graph.capture_end()
            except BaseException as error:
                traceback.clear_frames(error.__traceback__)  # what was allocated goes while the capture still takes it back
                clear_workspaces()
                self._void_capture(graph)
                raise
            if editable is not None:
                instantiate_without_memsets(editable, (0, 0) if counted is None else counted.span)
        current.wait_stream(self._stream)
        return _CudaReplay(graph, counted if counted is not None and counted.used else None)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """While it lasts, graphs captured ``alone`` work one after the other in the same memory.

        Each in its own, SD1.5's first call took 8.5 GiB to measure its kernels in, and takes 2.2 so; and a graph took 0.6 ms more (H100).
        """
        with contextlib.ExitStack() as stack:
            self._scratch = torch.cuda.graph_pool_handle()
            try:  # a pool ends with its last graph
                stack.callback(self.capture(lambda: torch.zeros(1, device=self._device), alone=True).release)
            except RuntimeError:  # the next capture says why
                self._scratch = None
            try:
                yield
            finally:
                self._scratch = None

    def _void_capture(self, graph: torch.cuda.CUDAGraph) -> None:
        """End a capture that failed. PyTorch leaves the random generator in its capturing state then: give it a fresh, equal one."""
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        generator = torch.cuda.default_generators[self._device.index]
        generator.graphsafe_set_state(generator.clone_state())

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

    def trim(self, none_left: bool) -> None:
        """Give what released graphs held back to the driver; without the trim cudaMallocAsync keeps it.

        A pool ends with its last graph (``none_left``): the next one needs a new pool.
        """
        if none_left:
            self._pool = None
        torch.cuda.empty_cache()
        trim = getattr(torch.cuda.cudart(), "cudaDeviceGraphMemTrim", None)
        if trim is not None:
            trim(self._device.index)


def _clear_workspaces() -> None:
    """Let cuBLAS take new workspaces from now on, where this PyTorch has a way to."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)()


def _nothing() -> None:
    """In place of a call that isn't wanted."""


class Captured:
    """A graph with its static inputs and outputs, which lie outside its pool. ``alive`` turns False when it is evicted."""

    def __init__(self, backend: Backend, inputs: Tensors, run: Callable[[Tensors], Tensors]) -> None:
        with torch.inference_mode(False):  # inference tensors refuse writes outside inference mode
            self.inputs = [torch.empty_like(x) for x in inputs]  # keeps dense strides, makes overlapping ones dense
        self.outputs: list[torch.Tensor] = []
        self.watch: weakref.finalize[..., Any] | None = None
        self._copy_in(inputs)
        before = backend.free_bytes()
        self._replayable = backend.capture(lambda: self._copy_out(run(self.inputs)))
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
                captured = Captured(self.backend, inputs, run)
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
        self.backend.trim(not self._graphs)


@functools.cache
def device_graphs(device: torch.device) -> DeviceGraphs | None:
    """The graphs of a CUDA device: one object per device, since its pool and its lock are shared by all compiled modules.

    None for any other device: nothing is captured there.
    """
    return DeviceGraphs(CudaBackend(device)) if device.type == "cuda" else None
