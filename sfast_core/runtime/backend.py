"""Captures, replays and releases CUDA graphs, one at a time, in one memory pool for all graphs of a device."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Protocol

import torch

from ..native import counters
from ..native.counters import Counters
from ..native.driver import CaptureStatus, capture_status
from .collector import collector_paused
from .failed_capture import check_capture, clear_frames, tensors_of, undo_capture
from .memset_nodes import editable_graph, instantiate_without_memsets

_MARGIN_BYTES = 1 << 29  #: to be free beyond what a graph needs; ComfyUI's dynamic VRAM itself keeps half of that free


class Replayable(Protocol):
    """A captured computation: ``replay`` reads and writes the buffers that it was captured on."""

    def replay(self) -> None: ...

    def release(self) -> None: ...


class Backend(Protocol):
    """The interface of what captures. CUDA's is below, where each method is explained; tests have one that only counts.

    Attributes:
        keeps_results: whether tensors that are made during a capture may outlive it.
    """

    @property
    def keeps_results(self) -> bool: ...

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None, room: int = 0
    ) -> Replayable: ...

    def scratch(self) -> contextlib.AbstractContextManager[None]: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def free_bytes(self) -> int: ...

    def unused_bytes(self) -> int: ...

    def synchronise(self) -> None: ...

    def mark(self) -> Any: ...

    def seconds_between(self, start: Any, end: Any) -> float | None: ...

    def trim(self) -> None: ...


class _CudaReplay:
    def __init__(self, graph: torch.cuda.CUDAGraph, counted: Counters | None, taken: int) -> None:
        self._graph = graph
        self.taken = taken  # bytes by which the driver's free memory shrank
        self._counted = counted  # memory that the graph's kernels write to: held as long as the graph
        self.alive = True

    def replay(self) -> None:
        self._graph.replay()

    def release(self) -> None:
        self.alive = False
        self._graph.reset()
        self._counted = None


class CudaBackend:
    """Captures on a side stream of its own.

    A graph gets cuBLAS workspaces from its own pool. PyTorch has one workspace for each thread and stream, and a graph
    captured with one of those would read freed memory as soon as anybody clears them: torch.compile's graphs do that
    for all streams, and in newer versions the end of any graph does it for the stream of its capture
    (pytorch/pytorch#193402).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._scratch: Any = None
        self._scratch_bytes = 0  # by which the scratch memory has shrunk the driver's free memory
        self._idle = torch.cuda.Event()  # recorded when the pool's last user was done
        self._in_pool: weakref.WeakSet[_CudaReplay] = weakref.WeakSet()
        self._touched: torch.Tensor | None = None  # what _touch() writes to
        self._kept: list[Any] = []  # left behind by failed captures, and never to be freed

    @property
    def keeps_results(self) -> bool:
        """Not under cudaMallocAsync: freeing such memory after the capture ends the process."""
        return torch.cuda.get_allocator_backend() != "cudaMallocAsync"

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None, room: int = 0
    ) -> Replayable:
        """Warm up, then run once into a graph.

        Args:
            run: the computation. It must have freed what it allocates when it returns, see :attr:`keeps_results`.
            alone: capture in memory of its own, or in the :meth:`scratch`, and not in the shared pool: for a graph that
                is replayed and released at once.
            warm_up: runs before the capture. None: ``run`` does.
            room: the bytes that the capture needs, where the warm-up doesn't take them.

        Raises:
            RuntimeError: the computation can't be captured, or memory ran out.
        """
        if self._pool is None or not any(replay.alive for replay in self._in_pool):
            # A pool ends with its last graph, and nothing can be captured into it from then on.
            self._pool, self._in_pool = torch.cuda.graph_pool_handle(), weakref.WeakSet()
        pool = self._pool if not alone else self._scratch or torch.cuda.graph_pool_handle()
        current = torch.cuda.current_stream(self._device)
        editable = editable_graph(self._device)
        # Before the capture, not in it: within the graph's pool this memory might be reused from an earlier kernel's
        # results, and be overwritten after it was zeroed.
        counted = None if editable is None else counters.allocate(self._device)
        self._stream.wait_stream(current)
        # A graph freed by the collector in the middle of a capture would break it.
        with collector_paused(), torch.cuda.stream(self._stream):
            (warm_up or run)()
            self._touch()
            self._stream.synchronize()
            clear_workspaces = _nothing if alone else _clear_workspaces
            clear_workspaces()
            free = self._make_room(room)
            graph = editable or torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                with counters.handed_out(counted):
                    run()
                # before the capture ends: cudaMallocAsync can free memory of a capture only within it
                clear_workspaces()
                check_capture(self._stream)
                graph.capture_end()
                if editable is not None:
                    instantiate_without_memsets(editable, (0, 0) if counted is None else counted.span)
            except BaseException as error:
                self._undo(error, graph, pool, clear_workspaces)
                raise
        current.wait_stream(self._stream)
        used, taken = counted if counted is not None and counted.used else None, max(0, free - self.free_bytes())
        replay = _CudaReplay(graph, used, taken)
        if not alone:
            self._in_pool.add(replay)
        elif self._scratch is not None:
            self._scratch_bytes += taken
        return replay

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        """A context in which graphs captured ``alone`` share one memory, one after the other.

        SD1.5's first call took 8.5 GiB to measure its kernels when each graph had memory of its own, 2.2 GiB since, and
        0.6 ms less for each graph (H100).
        """
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_scratch", None)
            self._scratch, self._scratch_bytes = torch.cuda.graph_pool_handle(), 0
            try:  # a pool ends with its last graph
                stack.callback(self.capture(lambda: torch.zeros(1, device=self._device), alone=True).release)
            except RuntimeError:  # the next capture says why
                self._scratch = None
            yield

    def _make_room(self, room: int) -> int:
        """Free the memory that the capture will need before it begins. Returns the bytes that are free then.

        It needs ``room``, or about what the warm-up has left in the allocator's cache, which a graph's pool can't use.
        During the
        capture it would be too late: ComfyUI's dynamic VRAM makes room for an allocation by evicting pages of models,
        which would end the capture.
        """
        wanted = max(room, self.unused_bytes()) + _MARGIN_BYTES
        if (free := self.free_bytes()) >= wanted:
            return free
        torch.cuda.empty_cache()
        if (free := self.free_bytes()) >= wanted:
            return free
        with contextlib.suppress(torch.cuda.OutOfMemoryError):  # the capture may find enough all the same
            torch.empty(wanted, dtype=torch.uint8, device=self._device)
        torch.cuda.empty_cache()
        return self.free_bytes()

    def _touch(self) -> None:
        """Launch a kernel that allocates nothing."""
        if self._touched is None:
            with torch.inference_mode(False):
                self._touched = torch.zeros(1, device=self._device)
        self._touched.fill_(0.0)

    def _undo(
        self, error: BaseException, graph: torch.cuda.CUDAGraph, pool: Any, clear_workspaces: Callable[[], None]
    ) -> None:
        """Undo a capture that failed with ``error``. A KeyboardInterrupt meanwhile is raised when that is done."""
        interrupt: KeyboardInterrupt | None = None
        whole: bool | None = None
        lost = False
        while whole is None:
            try:
                with torch.cuda.stream(self._stream):  # the captured code may have switched streams
                    if _frees_end_the_process(self._stream):
                        self._kept += tensors_of(error)
                        lost = True
                    else:  # free what was allocated while the capture can still take it back
                        clear_frames(error)
                        clear_workspaces()
                    whole = undo_capture(graph, pool, self._stream, self._touch)
            except KeyboardInterrupt as another:
                interrupt = another
        if not whole:
            self._kept.append(graph)
            self._pool = self._scratch = None
        if not whole or lost:  # the old stream's cuBLAS workspace lies in the lost capture's memory
            self._stream = torch.cuda.Stream(self._device)
        if interrupt is not None:
            try:
                raise interrupt
            finally:
                interrupt = None  # else exception and frame would hold one another

    def enter(self) -> None:
        """Let the caller's stream wait for the last user of the shared memory, perhaps another stream."""
        torch.cuda.current_stream(self._device).wait_event(self._idle)

    def leave(self) -> None:
        """Mark the end of this use of the shared memory."""
        self._idle.record(torch.cuda.current_stream(self._device))

    def free_bytes(self) -> int:
        """Bytes that the driver has free."""
        return int(torch.cuda.mem_get_info(self._device)[0])

    def unused_bytes(self) -> int:
        """Bytes that PyTorch's allocator holds and nobody uses, without those of graphs' pools."""
        held = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        in_pool = sum(replay.taken for replay in self._in_pool if replay.alive)  # counted in memory_reserved(), too
        in_pool += 0 if self._scratch is None else self._scratch_bytes
        return max(0, held - in_pool)

    def synchronise(self) -> None:
        """Wait for the device: a graph in flight can't be freed."""
        torch.cuda.synchronize(self._device)

    def mark(self) -> torch.cuda.Event:
        """Where the caller's stream is now."""
        event = torch.cuda.Event(enable_timing=True)
        event.record(torch.cuda.current_stream(self._device))
        return event

    def seconds_between(self, start: torch.cuda.Event, end: torch.cuda.Event) -> float | None:
        """What the device took from one mark to the other; None while it hasn't come that far."""
        return start.elapsed_time(end) / 1e3 if end.query() else None

    def trim(self) -> None:
        """Give what released graphs held back to the driver; without the trim cudaMallocAsync keeps it."""
        torch.cuda.empty_cache()
        trim = getattr(torch.cuda.cudart(), "cudaDeviceGraphMemTrim", None)
        if trim is not None:
            trim(self._device.index)


def _clear_workspaces() -> None:
    """Have cuBLAS allocate new workspaces from now on, where this PyTorch can."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)()


def _nothing() -> None:
    """Stands for a call that isn't wanted."""


def _frees_end_the_process(stream: torch.cuda.Stream) -> bool:
    """Whether freeing memory now would end the process: cudaMallocAsync can't on a stream with an invalid capture."""
    return (
        torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        and capture_status(stream.cuda_stream) is not CaptureStatus.ACTIVE
    )
