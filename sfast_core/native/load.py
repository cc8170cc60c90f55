"""Opens the CUDA extension: one library for every PyTorch and Python, through ctypes.

Nothing happens at import. The library is looked for when it is first asked for, once per process; one that was built from
other sources than those beside it is never taken.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path

import torch

from . import build

ABI_VERSION = 11  #: SFAST_ABI_VERSION of csrc/sfast.h
DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  #: element types by their code in csrc/sfast.h
INT64 = 3  #: likewise, where integers are read
SILU, ONE_KERNEL, TWO_KERNELS = 1, 2, 4  #: flags of group_norm_act
ACTS = {"none": 0, "silu": 1, "relu": 2}  #: activations of conv2d by their code in csrc/sfast.h

_int32, _int64, _float, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_float, ctypes.c_void_p
_SIGNATURES = {
    "sfast_abi_version": (_int32, []),
    "sfast_error_name": (ctypes.c_char_p, [_int32]),
    "sfast_device_status": (_int32, []),
    "sfast_cluster_status": (_int32, []),
    "sfast_attention_status": (_int32, []),
    "sfast_conv2d_status": (_int32, []),
    "sfast_conv2d_few_status": (_int32, []),
    "sfast_conv2d_clusters": (_int32, [_int64] * 3 + [_int32] * 4),  # n, height, width; rows, columns, window, blocks
    "sfast_graph_replace_memsets": (_int32, [_pointer, _pointer, _int64, _pointer]),  # graph, counters and their bytes; how many, an int32
    "sfast_group_norm_act_workspace_bytes": (_int64, [_int64, _int64]),
    "sfast_group_norm_act": (
        _int32,
        [_pointer, _pointer, _int64, _pointer]  # x, tail and its channels, y
        + [_pointer, _int32]  # weight and its dtype
        + [_pointer, _int32]  # bias and its dtype
        + [_pointer, _int32, _int64]  # channel_add, its dtype and stride
        + [_int64] * 4  # n, hw, c, groups
        + [_float, _int32, _int32]  # eps, dtype, flags
        + [_pointer, _int64, _pointer],  # workspace and its bytes, stream
    ),
    "sfast_group_norm_cluster": (
        _int32,
        [_pointer, _pointer, _int64, _pointer]  # x, tail and its channels, y
        + [_pointer, _int32]  # weight and its dtype
        + [_pointer, _int32]  # bias and its dtype
        + [_pointer, _int32, _int64]  # channel_add, its dtype and stride
        + [_int64] * 4  # n, hw, c, groups
        + [_float, _int32, _int32]  # eps, dtype, flags
        + [_int32, _int32, _pointer],  # groups and blocks of a cluster, stream
    ),
    "sfast_add_layer_norm": (
        _int32,
        [_pointer] * 8  # x, residual, x_bias, sum_bias, weight, bias, sum, out
        + [_int64] * 2  # rows, channels
        + [_float, _int32, _pointer],  # eps, dtype, stream
    ),
    "sfast_attention": (
        _int32,
        [_pointer, _pointer] * 3  # q, k and v, each with its strides
        + [_pointer]  # out
        + [_int64] * 5  # images, heads, queries, keys, head
        + [_float, _int32]  # scale, dtype
        + [_pointer] * 2  # how heads are cut, six int32; the same for half of the images
        + [_pointer] * 2,  # whether the other half differs, stream
    ),
    "sfast_conv2d": (
        _int32,
        [_pointer] * 3  # x, weight, bias
        + [_pointer, _int64]  # channel_add and its stride
        + [_pointer]  # residual
        + [_pointer, _int64] * 2  # shortcut and tail, each with its channels
        + [_pointer] * 2  # the shortcut's weight, out
        + [_int64] * 4  # n, height, width, c
        + [_int64] * 3  # channels, rows and columns of taps
        + [_int64] * 4  # strides and paddings, height before width
        + [_int32] * 2  # act, dtype
        + [_int32] * 6  # rows and columns of a tile, whether it has a window; blocks that share channels, that share pixels, that share the depth
        + [_pointer],  # stream
    ),
    "sfast_upsample_conv2d": (
        _int32,
        [_pointer] * 5  # x, weight, bias, room for the phases' weights, out
        + [_int64] * 5  # n, height, width, c, channels
        + [_int32]  # dtype
        + [_int32] * 4  # rows and columns of a tile; blocks that share channels, that share pixels
        + [_pointer],  # stream
    ),
    "sfast_conv2d_few": (
        _int32,
        [_pointer] * 4  # x, weight, bias, out
        + [_int64] * 5  # n, height, width, c, channels
        + [_int32, _pointer],  # dtype, stream
    ),
    "sfast_linear_few": (
        _int32,
        [_pointer] * 5  # x, weight, bias, residual, out
        + [_int64] * 3  # rows, columns, depth
        + [_int32, _int32, _pointer],  # act, dtype, stream
    ),
    "sfast_scaled_linear_status": (_int32, []),
    "sfast_scaled_linear": (
        _int32,
        [_pointer] * 3  # x, weight, the gate's weight
        + [_pointer, _int32]  # scales of the rows, from one to the next
        + [_pointer, _pointer, _int32]  # scales of the columns and of the gate's, from one to the next
        + [_pointer, _pointer, _int32]  # bias, the gate's bias, their dtype
        + [_pointer]  # out
        + [_int64] * 3  # rows, columns, depth
        + [_int32] * 3  # kind, act, dtype
        + [_int32] * 3  # a tile's columns, blocks that share them, groups of rows at a time
        + [_pointer],  # stream
    ),
    "sfast_sinusoids": (
        _int32,
        [_pointer, _int32, _int64]  # x, its dtype and stride
        + [_pointer] * 2  # frequencies, out
        + [_int64] * 2  # rows, frequencies
        + [_int32, _int32, _pointer],  # whether sines come first, dtype, stream
    ),
}


class ExtensionUnavailable(ImportError):
    """The CUDA extension can't be used; the message says why."""


class ExtensionError(RuntimeError):
    """A kernel of the CUDA extension could not be started."""


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library at ``path`` and declare its functions.

    Raises:
        ExtensionUnavailable: it can't be loaded, or it speaks another version of the interface.
    """
    try:
        library = ctypes.CDLL(str(path))
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
        version = library.sfast_abi_version()
    except (OSError, AttributeError) as error:
        raise ExtensionUnavailable(f"the CUDA extension {path.name} can't be loaded: {error}") from error
    if version != ABI_VERSION:
        raise ExtensionUnavailable(f"the CUDA extension {path.name} has interface version {version}, this code needs {ABI_VERSION}")
    return library


@functools.cache
def _library() -> ctypes.CDLL | ExtensionUnavailable:
    names = build.LIBRARIES.glob(f"sfast-{build.source_hash()}-*{build.SUFFIX}")
    newest = max(names, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return ExtensionUnavailable("the CUDA extension isn't built (python install.py builds it where nvcc and a GPU are)")
    try:
        return open_library(newest)
    except ExtensionUnavailable as error:
        return error


def library() -> ctypes.CDLL:
    """The extension, opened once.

    Raises:
        ExtensionUnavailable: it isn't built or can't be opened.
    """
    found = _library()
    if isinstance(found, ExtensionUnavailable):
        raise found
    return found


@functools.cache
def why_not(device: torch.device, status_of: str = "sfast_device_status") -> str | None:
    """Why the extension's kernels can't run on ``device``, or None. Asks the device once, without running anything on it.

    ``status_of``: the function of the library that knows it of the kernels in question.
    """
    found = _library()
    if isinstance(found, ExtensionUnavailable):
        return str(found)
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    with torch.cuda.device(device):
        status = getattr(found, status_of)()
    if status != 0:
        return f"the CUDA extension can't run on {device}: {error_name(found, status)}"
    return None


def error_name(library: ctypes.CDLL, status: int) -> str:
    """CUDA's name for an error code that the extension returned."""
    name: bytes = library.sfast_error_name(status)
    return name.decode()


def check(status: int, what: str) -> None:
    """Raise where the extension returned an error.

    Raises:
        ExtensionError: CUDA refused ``what``; the message has its name for the error.
    """
    if status != 0:
        raise ExtensionError(f"CUDA refused {what}: {error_name(library(), status)}")


def pointer(tensor: torch.Tensor | None) -> int | None:
    """A tensor that may be left out as the C interface takes it: where its elements begin, or null."""
    return None if tensor is None else tensor.data_ptr()


def vector(tensor: torch.Tensor | None) -> tuple[int | None, int]:
    """A small tensor likewise: pointer and element type."""
    return (None, 0) if tensor is None else (tensor.data_ptr(), DTYPES[tensor.dtype])


def forget() -> None:
    """Look for the library again when it is next asked for (after a build in this process)."""
    _library.cache_clear()
    why_not.cache_clear()
