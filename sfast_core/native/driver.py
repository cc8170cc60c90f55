"""Calls of the CUDA driver that PyTorch doesn't offer: whether a stream's capture was invalidated, ending such a
capture, leaving other threads' captures alone, and copies between addresses.
"""

from __future__ import annotations

import ctypes
import enum
import functools
import sys


class CaptureStatus(enum.IntEnum):
    """``CUstreamCaptureStatus``. An invalidated capture takes nothing more, and its end is an error."""

    NONE = 0
    ACTIVE = 1
    INVALIDATED = 2


_RELAXED = 2  #: CU_STREAM_CAPTURE_MODE_RELAXED: nobody else's calls are forbidden meanwhile


@functools.cache
def _library() -> ctypes.CDLL | None:
    try:
        library = ctypes.CDLL("nvcuda.dll" if sys.platform == "win32" else "libcuda.so.1")
        handle, out = ctypes.c_void_p, ctypes.c_void_p
        library.cuStreamIsCapturing.argtypes = [handle, out]
        library.cuStreamBeginCapture_v2.argtypes = [handle, ctypes.c_int]
        library.cuStreamEndCapture.argtypes = [handle, out]
        library.cuGraphDestroy.argtypes = [handle]
        library.cuThreadExchangeStreamCaptureMode.argtypes = [out]
        library.cuMemcpyAsync.argtypes = [ctypes.c_uint64, ctypes.c_uint64, ctypes.c_size_t, handle]
    except (OSError, AttributeError):
        return None
    return library


def capture_status(stream: int) -> CaptureStatus | None:
    """Whether ``stream`` (its handle) is being captured. None where the driver can't be asked, or doesn't say."""
    library, status = _library(), ctypes.c_int()
    if (
        library is None
        or library.cuStreamIsCapturing(stream, ctypes.byref(status)) != 0
        or status.value not in list(CaptureStatus)
    ):
        return None
    return CaptureStatus(status.value)


def begin_capture(stream: int) -> bool:
    """Begin a capture that PyTorch doesn't know of. Returns whether there is one."""
    library = _library()
    return library is not None and library.cuStreamBeginCapture_v2(stream, _RELAXED) == 0


def drop_capture(stream: int) -> None:
    """End the capture of ``stream``, if there is one, and forget what it captured. For the thread that began it."""
    library, graph = _library(), ctypes.c_void_p()
    if library is None or not capture_status(stream):
        return
    # this returns an error for an invalidated capture, and ends it all the same
    library.cuStreamEndCapture(stream, ctypes.byref(graph))
    if graph.value:
        library.cuGraphDestroy(graph)


def leave_captures_alone() -> None:
    """From here on the calling thread's calls invalidate no capture of another thread, whatever that one's mode: for
    threads that compile and load kernels while the host does what it likes.
    """
    library = _library()
    if library is not None:
        library.cuThreadExchangeStreamCaptureMode(ctypes.byref(ctypes.c_int(_RELAXED)))


def can_copy() -> bool:
    """Whether :func:`copy_async` is there."""
    return _library() is not None


def copy_async(to: int, source: int, size: int, stream: int) -> None:
    """Copy between two addresses on ``stream`` (its handle): a node of its graph while it is captured.

    Neither may go before that is done.

    Raises:
        RuntimeError: the driver refuses.
    """
    library = _library()
    status = -1 if library is None else library.cuMemcpyAsync(to, source, size, stream)
    if status != 0:
        raise RuntimeError(f"copying {size} bytes to the device failed: CUDA's error {status}")
