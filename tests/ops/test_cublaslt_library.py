"""What is declared of cuBLASLt is what its headers say, and which library that is."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import re
import sys
import sysconfig
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from sfast_core.ops.linear import cublaslt_library as library
from sfast_core.ops.linear.cublaslt_library import DataType, Epilogue, Operation, Preference, ReductionScheme, Transpose
from tests.ops.cublaslt import GPU, why_not

# The names of the headers, and what they are there.
NUMBERS = {
    "CUDA_R_32F": (DataType.R_32F, 0),
    "CUDA_R_16F": (DataType.R_16F, 2),
    "CUDA_R_16BF": (DataType.R_16BF, 14),
    "CUBLAS_OP_N": (Transpose.NO, 0),
    "CUBLAS_OP_T": (Transpose.YES, 1),
    "CUBLAS_COMPUTE_16F": (library.COMPUTE_16F, 64),
    "CUBLAS_COMPUTE_32F": (library.COMPUTE_32F, 68),
    "CUBLASLT_EPILOGUE_DEFAULT": (Epilogue.DEFAULT, 1),
    "CUBLASLT_EPILOGUE_BIAS": (Epilogue.BIAS, 4),
    "CUBLASLT_REDUCTION_SCHEME_INPLACE": (ReductionScheme.IN_PLACE, 1),
    "CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE": (ReductionScheme.COMPUTE_TYPE, 2),
    "CUBLASLT_REDUCTION_SCHEME_OUTPUT_TYPE": (ReductionScheme.OUTPUT_TYPE, 4),
    "CUBLASLT_MATMUL_DESC_TRANSA": (Operation.TRANSPOSE_A, 3),
    "CUBLASLT_MATMUL_DESC_TRANSB": (Operation.TRANSPOSE_B, 4),
    "CUBLASLT_MATMUL_DESC_EPILOGUE": (Operation.EPILOGUE, 7),
    "CUBLASLT_MATMUL_DESC_BIAS_POINTER": (Operation.BIAS_POINTER, 8),
    "CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES": (Preference.MAX_WORKSPACE_BYTES, 1),
    "CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK": (Preference.REDUCTION_SCHEME_MASK, 3),
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES": (Preference.MIN_ALIGNMENT_A_BYTES, 5),
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES": (Preference.MIN_ALIGNMENT_B_BYTES, 6),
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES": (Preference.MIN_ALIGNMENT_C_BYTES, 7),
    "CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES": (Preference.MIN_ALIGNMENT_D_BYTES, 8),
}


# -- declarations --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NUMBERS)
def test_numbers(name: str) -> None:
    ours, theirs = NUMBERS[name]
    assert ours == theirs


def test_every_number_is_checked() -> None:
    enums = (DataType, Transpose, Epilogue, ReductionScheme, Operation, Preference)
    assert [
        member for enum in enums for member in enum if not any(member is ours for ours, _ in NUMBERS.values())
    ] == []


def test_structures() -> None:
    result = library.HeuristicResult
    assert ctypes.sizeof(library.Algorithm) == 64 and ctypes.sizeof(result) == 96
    assert [getattr(result, name).offset for name, *_ in result._fields_] == [0, 64, 72, 76, 80]


def _headers() -> str:
    """The text of the headers of a CUDA that is installed here."""
    roots = [Path(os.environ[name]) for name in ("CUDA_HOME", "CUDA_PATH") if name in os.environ]
    roots += [Path("/usr/local/cuda"), *Path(sysconfig.get_paths()["purelib"]).glob("nvidia/*")]
    found = {name: path for root in roots for name in _HEADERS if (path := root / "include" / name).exists()}
    if len(found) < len(_HEADERS):
        pytest.skip("there are no CUDA headers here")
    return "\n".join(path.read_text("utf-8", "replace") for path in found.values())


_HEADERS = ("cublasLt.h", "cublas_api.h", "library_types.h")


def test_numbers_and_signatures_are_those_of_the_installed_headers() -> None:
    text = re.sub(r"/\*.*?\*/|//[^\n]*", "", _headers(), flags=re.DOTALL)
    for name, (ours, _) in NUMBERS.items():
        (number,) = set(re.findall(rf"\b{name}\s*=\s*(\w+)", text))
        assert int(number, 0) == ours, name
    for name, parameters in library.SIGNATURES.items():
        (theirs,) = set(re.findall(rf"\b{name}\(([^)]*)\);", text))
        assert len(theirs.split(",")) == len(parameters), name


# -- the library ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cuda", "platform", "name"),
    [
        ("13.0", "linux", "libcublasLt.so.13"),
        ("12.4", "linux", "libcublasLt.so.12"),
        ("13.0", "win32", "cublasLt64_13.dll"),
        ("11.8", "linux", None),
        ("14.0", "linux", None),
        ("13.0", "darwin", None),
        (None, "linux", None),
    ],
)
def test_the_name_of_pytorchs_library(cuda: str | None, platform: str, name: str | None) -> None:
    assert library.name_of(cuda, platform) == name


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="names a library of Linux")
def test_another_library_is_refused() -> None:
    with pytest.raises(OSError):
        library.open_loaded("libcublasLt.so.0")
    with pytest.raises(AttributeError, match="cublasLtCreate"):
        library.open_loaded(ctypes.util.find_library("c") or "libc.so.6")


@pytest.mark.skipif(torch.version.cuda is not None, reason="this PyTorch has a cuBLASLt")
def test_why_not_without_a_library() -> None:
    x, weight = (
        torch.empty(4, 64, dtype=torch.half, device="meta"),
        torch.empty(64, 64, dtype=torch.half, device="meta"),
    )
    reason = why_not(GPU, x, weight, None, x)
    assert reason is not None and "cuBLASLt can't be used: PyTorch" in reason


def test_an_error_names_the_function_and_the_status() -> None:
    with pytest.raises(RuntimeError, match="cublasLtMatmul: status 15, not supported"):
        library._check(15, SimpleNamespace(__name__="cublasLtMatmul"), ())
