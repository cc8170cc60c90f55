"""What captures a CUDA graph, replays it and gives it back: one graph at a time,
in memory that all of a device share.
"""

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

_MARGIN_BYTES = 1 << 29  #: free beside what a graph takes: ComfyUI's dynamic VRAM keeps half of it so


class Replayable(Protocol):
    """A captured computation: ``replay`` reads and writes the buffers that it was captured on."""

    def replay(self) -> None: ...

    def release(self) -> None: ...


class Backend(Protocol):
    """What captures. CUDA's is below; tests have one that only counts.

    Attributes:
        keeps_results: whether tensors that are made while a graph is captured may outlive the capture.
    """

    @property
    def keeps_results(self) -> bool: ...

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None
    ) -> Replayable: ...

    def scratch(self) -> contextlib.AbstractContextManager[None]: ...

    def enter(self) -> None: ...

    def leave(self) -> None: ...

    def free_bytes(self) -> int: ...

    def synchronise(self) -> None: ...

    def mark(self) -> Any: ...

    def seconds_between(self, start: Any, end: Any) -> float | None: ...

    def trim(self) -> None: ...


class _CudaReplay:
    def __init__(self, graph: torch.cuda.CUDAGraph, counted: Counters | None, taken: int) -> None:
        self._graph = graph
        self.taken = taken  # bytes, from the driver
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

    cuBLAS's workspaces are taken from the graph's own pool. PyTorch keeps one for each thread and stream, and a graph
    that was captured with such a one reads freed memory as soon as anybody clears them: torch.compile's graphs do so
    for all streams, and in newer versions the end of any graph for the stream that it was captured on
    (pytorch/pytorch#193402).
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.Stream(device)
        self._pool: Any = None
        self._scratch: Any = None
        self._scratch_bytes = 0  # that it has taken from the driver
        self._idle = torch.cuda.Event()
        self._in_pool: weakref.WeakSet[_CudaReplay] = weakref.WeakSet()
        self._touched: torch.Tensor | None = None  # memory for a kernel that does nothing else
        self._kept: list[Any] = []  # what a failed capture left behind that must not go

    @property
    def keeps_results(self) -> bool:
        """Under cudaMallocAsync freeing such memory ends the process."""
        return torch.cuda.get_allocator_backend() != "cudaMallocAsync"

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None
    ) -> Replayable:
        """Warm up, then run once into a graph.

        Args:
            run: the computation. What it allocates must be gone when it returns: under cudaMallocAsync, freeing such
                memory later ends the process.
            alone: in memory of its own or in the :meth:`scratch` rather than in the shared pool, to be replayed and
                released at once.
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
        # Not in the capture: memory from the graph's pool may have been that of an earlier kernel's results, written
        # behind the zeros.
        counted = None if editable is None else counters.allocate(self._device)
        self._stream.wait_stream(current)
        # A graph freed by the collector in the middle of a capture would break it.
        with collector_paused(), torch.cuda.stream(self._stream):
            (warm_up or run)()
            self._touch()
            self._stream.synchronize()
            clear_workspaces = _nothing if alone else _clear_workspaces
            clear_workspaces()
            free = self._make_room()
            graph = editable or torch.cuda.CUDAGraph()
            try:
                graph.capture_begin(pool=pool, capture_error_mode="thread_local")
                with counters.handed_out(counted):
                    run()
                # while it is captured: cudaMallocAsync takes such memory back within the capture only
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
        """While it lasts, graphs captured ``alone`` work one after the other in the same memory.

        Each in its own, SD1.5's first call took 8.5 GiB to measure its kernels in, and takes 2.2 so; and a graph took
        0.6 ms more (H100).
        """
        with contextlib.ExitStack() as stack:
            stack.callback(setattr, self, "_scratch", None)
            self._scratch, self._scratch_bytes = torch.cuda.graph_pool_handle(), 0
            try:  # a pool ends with its last graph
                stack.callback(self.capture(lambda: torch.zeros(1, device=self._device), alone=True).release)
            except RuntimeError:  # the next capture says why
                self._scratch = None
            yield

    def _make_room(self) -> int:
        """Have as much memory free as the warm-up has left with the allocator, which keeps it from a graph's pool.

        Returns the bytes that are free then.

        Nobody's memory can be taken away while a graph is captured, and an allocation then mustn't try: ComfyUI's
        dynamic VRAM makes room for each by evicting pages of models, which ends a capture.
        """
        kept = torch.cuda.memory_reserved(self._device) - torch.cuda.memory_allocated(self._device)
        in_pool = sum(replay.taken for replay in self._in_pool if replay.alive)  # which counts as the allocator's, too
        in_pool += 0 if self._scratch is None else self._scratch_bytes
        wanted = max(0, kept - in_pool) + _MARGIN_BYTES
        if (free := self.free_bytes()) >= wanted:
            return free
        torch.cuda.empty_cache()
        if (free := self.free_bytes()) >= wanted:
            return free
        with contextlib.suppress(torch.cuda.OutOfMemoryError):  # then the capture may find enough all the same
            torch.empty(wanted, dtype=torch.uint8, device=self._device)
        torch.cuda.empty_cache()
        return self.free_bytes()

    def _touch(self) -> None:
        """Launch a kernel, on memory that was there before."""
        if self._touched is None:
            with torch.inference_mode(False):
                self._touched = torch.zeros(1, device=self._device)
        self._touched.fill_(0.0)

    def _undo(
        self, error: BaseException, graph: torch.cuda.CUDAGraph, pool: Any, clear_workspaces: Callable[[], None]
    ) -> None:
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
            try:
                raise interrupt
            finally:
                interrupt = None  # or it would hold this frame, and this frame it

    def enter(self) -> None:
        """Let the caller's stream wait until the last user of the shared memory is done: it may have been another
        stream.
        """
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
    """Let cuBLAS take new workspaces from now on, where this PyTorch has a way to."""
    getattr(torch._C, "_cuda_clearCublasWorkspaces", _nothing)()


def _nothing() -> None:
    """In place of a call that isn't wanted."""


def _frees_end_the_process(stream: torch.cuda.Stream) -> bool:
    """Whether cudaMallocAsync would be asked to take memory back on a stream whose capture is invalid: its error comes
    from a destructor.
    """
    return (
        torch.cuda.get_allocator_backend() == "cudaMallocAsync"
        and capture_status(stream.cuda_stream) is not CaptureStatus.ACTIVE
    )
