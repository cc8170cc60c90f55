"""What a capture that failed leaves behind, and how it is undone.

What PyTorch does and when is told in ``docs/notes/0002-failed-captures.md``.

``CUDAGraph.capture_begin`` makes the memory pool, the host's pinned memory and the random generator ready for a
capture, and only a ``capture_end`` that succeeds takes that back. On a capture that was invalidated it can't succeed.
So such a capture is dropped behind PyTorch's back, another that holds one kernel is begun in its place, and that one is
ended as ever.
"""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Callable, Iterator
from typing import Any

import torch

from ..native.driver import CaptureStatus, begin_capture, capture_status, drop_capture


def check_capture(stream: torch.cuda.Stream) -> None:
    """Tell before ``capture_end`` that it would fail: in some versions it can be called but once.

    Raises:
        RuntimeError: the capture on ``stream`` was invalidated, and nobody said so.
    """
    if capture_status(stream.cuda_stream) is CaptureStatus.INVALIDATED:
        raise RuntimeError("something was run that a CUDA graph can't hold, and its error was ignored")


def undo_capture(
    graph: torch.cuda.CUDAGraph, pool: Any, stream: torch.cuda.Stream, launch: Callable[[], object]
) -> bool:
    """End a capture that failed, wherever it did. For the thread that began it, with ``stream`` as its current one.

    Args:
        graph: that was to be captured. It can't be used any more.
        pool: the handle that ``capture_begin`` was given.
        stream: on which it was captured.
        launch: launches one kernel of PyTorch's that allocates nothing.

    Returns:
        Whether PyTorch is as before. If not, ``graph`` must be kept for good, because an allocator may still ask it
        whose memory it hands out, and neither the pool nor the stream be captured with again.
    """
    handle = stream.cuda_stream
    if not _ended(graph):
        if capture_status(handle) is not CaptureStatus.ACTIVE:
            drop_capture(handle)
            if begin_capture(handle):
                with contextlib.suppress(RuntimeError):
                    launch()  # PyTorch warns of empty graphs
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        drop_capture(handle)
    ended = _ended(graph)
    with contextlib.suppress(RuntimeError):
        graph.reset()
    with contextlib.suppress(RuntimeError):
        launch()  # it takes an error along that CUDA still has to tell: the next one to launch a kernel would get it
    if not ended:
        _stop_recording(stream.device_index, pool)
        _free_generator(stream.device_index, launch)
    return ended


def _ended(graph: torch.cuda.CUDAGraph) -> bool:
    """Whether ``capture_end`` did all that ``reset`` takes for granted."""
    try:
        graph.pool()
    except RuntimeError:
        return False
    return True


def _stop_recording(device: int | None, pool: Any) -> None:
    """Let the allocator forget a capture that neither ``capture_end`` nor ``reset`` made it forget.

    Only what is still recording is released: releasing a pool twice would free memory under the graphs of others.
    """
    end = getattr(torch._C, "_cuda_endAllocateToPool", None) or getattr(
        torch._C, "_cuda_endAllocateCurrentStreamToPool", None
    )
    release = getattr(torch._C, "_cuda_releasePool", None)
    if end is None or release is None:
        return
    with contextlib.suppress(RuntimeError):
        end(device, pool)
        release(device, pool)


def _free_generator(device: int | None, launch: Callable[[], object]) -> None:
    """Let the random generator know that no capture goes on, as the end of the next one does.

    Where there can't be one it gets a fresh, equal state. Graphs that draw numbers keep the old one, so that a seed
    doesn't reach them any more.
    """
    graph = torch.cuda.CUDAGraph()
    try:
        graph.capture_begin(pool=torch.cuda.graph_pool_handle(), capture_error_mode="thread_local")
        launch()
        graph.capture_end()
    except RuntimeError:
        with contextlib.suppress(RuntimeError):
            graph.capture_end()
        generator = torch.cuda.default_generators[device or 0]
        generator.graphsafe_set_state(generator.clone_state())
    graph.reset()


def clear_frames(error: BaseException) -> None:
    """Let go of what the functions held that ``error`` and those behind it came from."""
    for each in _chain(error):
        traceback.clear_frames(each.__traceback__)


def tensors_of(error: BaseException) -> list[torch.Tensor]:
    """The CUDA tensors that these functions held, less parameters."""
    found: dict[int, torch.Tensor] = {}

    def collect(value: Any, depth: int) -> None:
        if isinstance(value, torch.Tensor):
            if value.is_cuda and not isinstance(value, torch.nn.Parameter):
                found[id(value)] = value
        elif depth and isinstance(value, (tuple, list)):
            for item in value:
                collect(item, depth - 1)
        elif depth and isinstance(value, dict):
            collect(list(value.values()), depth)

    for each in _chain(error):
        for frame, _ in traceback.walk_tb(each.__traceback__):
            for value in list(frame.f_locals.values()):
                collect(value, 3)
    return list(found.values())


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__cause__, each.__context__]
