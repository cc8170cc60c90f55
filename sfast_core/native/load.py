"""Opens the CUDA extension: one library for every PyTorch and Python, through ctypes.

Nothing happens at import. The library is looked for when it is first asked for, once per process; one that was built
from other sources than those beside it is never taken.
"""

from __future__ import annotations

import ctypes
import functools
from pathlib import Path
from typing import Any

import torch

from . import build
from .interface import interface

DTYPES = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 2}  #: element types by their code in csrc/sfast.h
INT64 = 3  #: likewise, where integers are read
SILU, ONE_KERNEL, TWO_KERNELS = 1, 2, 4  #: flags of group_norm_act
ACTS = {"none": 0, "silu": 1, "relu": 2}  #: activations of conv2d by their code in csrc/sfast.h


class ExtensionUnavailable(ImportError):
    """The CUDA extension can't be used; the message says why."""


class ExtensionError(RuntimeError):
    """A kernel of the CUDA extension could not be started."""


def open_library(path: Path) -> ctypes.CDLL:
    """Load the library at ``path``, built from the sources beside it, and declare the functions that it has.

    Raises:
        ExtensionUnavailable: it can't be loaded.
    """
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise ExtensionUnavailable(f"the CUDA extension {path.name} can't be loaded: {error}") from error
    for name, declared in interface().functions.items():
        function = getattr(library, name, None)
        if function is not None:  # what needs a newer CUDA is left out of a build by an older one
            function.restype = declared.result
            function.argtypes = list(declared.parameters.values())
    return library


@functools.cache
def _library() -> ctypes.CDLL | ExtensionUnavailable:
    names = build.LIBRARIES.glob(f"sfast-{build.source_hash()}-*{build.SUFFIX}")
    newest = max(names, key=lambda path: path.stat().st_mtime, default=None)
    if newest is None:
        return ExtensionUnavailable(
            "the CUDA extension isn't built (python install.py, or python -m sfast_core build, builds it where nvcc and"
            " a GPU are)"
        )
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
        raise ExtensionUnavailable(str(found))  # a new one: what is kept would keep the frames of all who were told
    return found


@functools.cache
def why_not(device: torch.device, status_of: str = "sfast_device_status") -> str | None:
    """Why the extension's kernels can't run on ``device``, or None.

    Asks the device once, without running anything on it.

    ``status_of``: the function of the library that knows it of the kernels in question.
    """
    found = _library()
    if isinstance(found, ExtensionUnavailable):
        return str(found)
    if not torch.cuda.is_available():
        return "PyTorch sees no CUDA device"
    ask = getattr(found, status_of, None)
    if ask is None:
        return "the CUDA extension was built by a CUDA older than 12"
    with torch.cuda.device(device):
        status = ask()
    if status != 0:
        return f"the CUDA extension can't run on {device}: {error_name(found, status)}"
    return None


def error_name(library: ctypes.CDLL, status: int) -> str:
    """CUDA's name for an error code that the extension returned."""
    name: bytes = library.sfast_error_name(status)
    return name.decode()


def launch(function: str, device: torch.device, what: str, **arguments: Any) -> None:
    """Queue what a function of the extension does on a device's current stream.

    Args:
        function: its name.
        device: which; the function's own ``stream`` is its current one.
        what: for the error's text.
        arguments: by the parameters' names. A tensor stands for the address of its elements, None for null.

    Raises:
        ExtensionUnavailable: the extension isn't built or can't be opened.
        ExtensionError: CUDA refused ``what``; the message has its name for the error.
        TypeError: an argument is missing, or there is no such parameter.
    """
    loaded, parameters = library(), interface().functions[function].parameters
    # no device of CUDA's in tests, which have no library either
    with torch.cuda.device(device if device.type == "cuda" else -1):
        arguments["stream"] = torch.cuda.current_stream(device).cuda_stream
        if arguments.keys() != parameters.keys():
            raise TypeError(f"{function}: got {sorted(arguments)}, needs {sorted(parameters)}")
        values = (arguments[name] for name in parameters)
        status = getattr(loaded, function)(
            *(value.data_ptr() if isinstance(value, torch.Tensor) else value for value in values)
        )
    if status != 0:
        raise ExtensionError(f"CUDA refused {what}: {error_name(loaded, status)}")


def dtype_of(tensor: torch.Tensor | None) -> int:
    """The code of a tensor's element type; any where there is none."""
    return 0 if tensor is None else DTYPES[tensor.dtype]


def forget() -> None:
    """Look for the library again when it is next asked for (after a build in this process)."""
    _library.cache_clear()
    why_not.cache_clear()
