"""cuBLASLt's product through ctypes: PyTorch takes its first algorithm, and has no call that adds a residual.

It is the library that PyTorch has loaded already: nothing to install or to compile, and no second copy of its kernels
on the GPU.
Numbers, structures and signatures are those of ``cublasLt.h``; they are the same in the headers of CUDA 12.4 and 13.1.
"""

from __future__ import annotations

import ctypes
import functools
import os
import sys
from enum import IntEnum
from typing import Any

import torch

MAJORS = (12, 13)  #: versions of CUDA whose header was read; another one may number things anew
#: ``cublasComputeType_t``: float16 sums; float32 sums, no TF32.
COMPUTE_16F, COMPUTE_32F = 64, 68


class DataType(IntEnum):
    """``cudaDataType``."""

    R_32F = 0
    R_16F = 2
    R_16BF = 14


class Transpose(IntEnum):
    """``cublasOperation_t``."""

    NO = 0
    YES = 1


class Epilogue(IntEnum):
    """``cublasLtEpilogue_t``."""

    DEFAULT = 1
    BIAS = 4  #: a vector as long as D has rows


class ReductionScheme(IntEnum):
    """``cublasLtReductionScheme_t``: how the parts of a product that was split along K are summed.

    A mask; splitting not at all always may.
    """

    IN_PLACE = 1
    COMPUTE_TYPE = 2  #: float32 parts in the workspace, summed in a separate step
    OUTPUT_TYPE = 4


class Operation(IntEnum):
    """``cublasLtMatmulDescAttributes_t``."""

    TRANSPOSE_A = 3  #: int32
    TRANSPOSE_B = 4  #: int32
    EPILOGUE = 7  #: uint32
    BIAS_POINTER = 8  #: an address


class Preference(IntEnum):
    """``cublasLtMatmulPreferenceAttributes_t``."""

    MAX_WORKSPACE_BYTES = 1  #: uint64
    REDUCTION_SCHEME_MASK = 3  #: uint32
    MIN_ALIGNMENT_A_BYTES = 5  #: uint32, as the next three
    MIN_ALIGNMENT_B_BYTES = 6
    MIN_ALIGNMENT_C_BYTES = 7
    MIN_ALIGNMENT_D_BYTES = 8


class Algorithm(ctypes.Structure):
    """``cublasLtMatmulAlgo_t``, opaque."""

    _fields_ = [("data", ctypes.c_uint64 * 8)]


class HeuristicResult(ctypes.Structure):
    """``cublasLtMatmulHeuristicResult_t``: an algorithm, and what it needs."""

    _fields_ = [
        ("algorithm", Algorithm),
        ("workspace_bytes", ctypes.c_size_t),
        ("status", ctypes.c_int),
        ("waves", ctypes.c_float),
        ("reserved", ctypes.c_int * 4),
    ]


_OBJECT = ctypes.c_void_p  # a handle, a descriptor or an address
_NEW_OBJECT = ctypes.POINTER(ctypes.c_void_p)
_SET = (_OBJECT, ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t)
#: The parameters of each function; all return a status.
SIGNATURES: dict[str, tuple[Any, ...]] = {
    "cublasLtCreate": (_NEW_OBJECT,),
    "cublasLtMatmulDescCreate": (_NEW_OBJECT, ctypes.c_int, ctypes.c_int),
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatmulDescDestroy": (_OBJECT,),
    "cublasLtMatrixLayoutCreate": (_NEW_OBJECT, ctypes.c_int, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),
    "cublasLtMatrixLayoutDestroy": (_OBJECT,),
    "cublasLtMatmulPreferenceCreate": (_NEW_OBJECT,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    "cublasLtMatmulPreferenceDestroy": (_OBJECT,),
    "cublasLtMatmulAlgoGetHeuristic": (
        *(_OBJECT,) * 7,  # handle, operation, layouts of A, B, C, D, preference
        ctypes.c_int,  # how many
        ctypes.POINTER(HeuristicResult),
        ctypes.POINTER(ctypes.c_int),  # how many there are
    ),
    "cublasLtMatmul": (
        *(_OBJECT, _OBJECT),  # handle, operation
        ctypes.c_void_p,  # alpha
        *(_OBJECT,) * 4,  # A and its layout, B and its layout
        ctypes.c_void_p,  # beta
        *(_OBJECT,) * 4,  # C and its layout, D and its layout
        ctypes.POINTER(Algorithm),
        *(ctypes.c_void_p, ctypes.c_size_t),  # workspace
        ctypes.c_void_p,  # stream
    ),
}
_STATUS = {
    1: "not initialised",
    3: "out of memory",
    7: "invalid value",
    8: "wrong architecture",
    13: "failed",
    14: "internal error",
    15: "not supported",
}


def declare(library: Any) -> Any:
    """Give the functions of a loaded library their signatures. A status other than success becomes a RuntimeError.

    Raises:
        AttributeError: it lacks one of them.
    """
    for name, parameters in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype, function.errcheck = parameters, ctypes.c_int, _check
    return library


def _check(status: int, function: Any, _: Any) -> int:
    if status != 0:
        raise RuntimeError(f"{function.__name__}: status {status}, {_STATUS.get(status, 'unknown')}")
    return status


def name_of(cuda: str | None, platform: str) -> str | None:
    """The file name of the library that a PyTorch for this CUDA ("13.0") has loaded; None where it isn't known."""
    major = (cuda or "").split(".")[0]
    if not major.isdigit() or int(major) not in MAJORS:
        return None
    return {"linux": f"libcublasLt.so.{major}", "win32": f"cublasLt64_{major}.dll"}.get(platform)


def open_loaded(name: str) -> Any:
    """The library of this file name, which this process has loaded, with its functions declared.

    A name without a folder finds what is loaded; on Linux nothing else either, on Windows PyTorch has loaded all of its
    own.

    Raises:
        OSError: it isn't loaded.
        AttributeError: it isn't cuBLASLt.
    """
    return declare(ctypes.CDLL(name, mode=getattr(os, "RTLD_NOLOAD", 0) | getattr(os, "RTLD_NOW", 0)))


@functools.cache
def loaded() -> Any:
    """PyTorch's cuBLASLt.

    Raises:
        OSError: it can't be found.
        AttributeError: it lacks a function.
    """
    name = name_of(torch.version.cuda, sys.platform)
    if name is None:
        raise OSError(
            f"PyTorch {torch.__version__} for CUDA {torch.version.cuda} on {sys.platform} has none that is known"
        )
    return open_loaded(name)


@functools.cache
def why_no_library() -> str | None:
    """Why cuBLASLt can't be called, or None."""
    try:
        loaded()
    except (OSError, AttributeError) as error:
        return f"cuBLASLt can't be used: {str(error).splitlines()[0][:120]}"
    return None
