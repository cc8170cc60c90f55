"""The kernels in csrc/ compile for every architecture they are meant for, without spills, and the result opens without
PyTorch's help.
"""

from __future__ import annotations

import ctypes
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch

from sfast_core.native import build, load
from sfast_core.native.interface import interface
from sfast_core.ops.group_norm_act import OP
from sfast_core.ops.scaled_linear import cuda_impl as scaled_linear
from sfast_core.target import Target

ARCHS = "80;86;89;90a"


@pytest.fixture(scope="module")
def compiled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, str]:
    """The library and what the assembler said of its kernels."""
    nvcc = build.find_nvcc()
    if nvcc is None:
        pytest.skip("needs nvcc, which is neither in CUDA_HOME nor on PATH")
    try:
        recipe = build.make_recipe(nvcc, {**os.environ, "SFAST_CUDA_ARCHS": ARCHS})
    except build.BuildError as error:
        pytest.skip(str(error))
    library = tmp_path_factory.mktemp("native") / recipe.file_name
    command = [*recipe.command(library), "-Xptxas", "-v"]
    done = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return library, done.stdout + done.stderr


_SPILLS = r"(\d+) bytes spill stores, (\d+) bytes spill loads"


def test_every_architecture_is_in_it_and_no_kernel_spills(compiled: tuple[Path, str]) -> None:
    _, log = compiled
    assert set(re.findall(r"Compiling entry function .* for '(sm_\w+)'", log)) >= {
        f"sm_{arch}" for arch in ARCHS.split(";")
    }
    assert "warning" not in log
    # its two scales and biases a column are put aside once a tile, which was measured at 1,350 TOP/s
    gated = r"\d+scaled_linear_kernel\w*Lb1E"
    entries = re.split(r"Compiling entry function ", log)[1:]
    spills = [
        found
        for entry in entries
        if not re.search(gated, entry.splitlines()[0])
        for found in re.findall(_SPILLS, entry)
    ]
    assert len(spills) >= 18 * len(ARCHS.split(";")), "three kernels, three dtypes, packs and single elements"
    assert set(spills) == {("0", "0")}
    assert not re.search("C751[0-9]", log), "wgmma is made to wait for itself"


@pytest.mark.parametrize("kernel", ["attention_kernel", "conv2d_gather_kernel", "conv2d_window_kernel"])
def test_what_has_code_for_hopper_alone_can_tell(compiled: tuple[Path, str], kernel: str) -> None:
    """The empty kernel of another architecture has no shared memory: that is what sfast_attention_status and
    sfast_conv2d_status look at.
    """
    entries = re.split(r"Compiling entry function ", compiled[1])[1:]
    found = {
        arch[1]: "smem" in next(line for line in entry.splitlines() if "registers" in line)
        for entry in entries
        if kernel in entry.splitlines()[0] and (arch := re.search(r"for '(sm_\w+)'", entry))
    }
    assert found == {f"sm_{arch}": arch == "90a" for arch in ARCHS.split(";")}


STRIDES, CUT = (ctypes.c_int64 * 3)(40, 160, 1280), ctypes.c_int32 * 6
FLOAT32, FLOAT16 = load.DTYPES[torch.float32], load.DTYPES[torch.float16]
#: Of each function, what it takes (every pointer that isn't named is an aligned address), and what it is given instead.
REFUSED: dict[str, tuple[dict[str, Any], dict[str, list[dict[str, Any]]]]] = {
    "sfast_attention": (
        {"images": 2, "heads": 8, "queries": 4, "keys": 4, "head": 40, "scale": 0.158, "dtype": FLOAT16}
        | {"q_strides": STRIDES, "k_strides": STRIDES, "v_strides": STRIDES}
        | {"cut": CUT(16, 1, 0, 0, 0, 0), "half_cut": None},
        {
            "cudaSuccess": [{"queries": 0}, {"half_cut": CUT(8, 1, 0, 0, 0, 0), "queries": 0}],
            "cudaErrorInvalidValue": [
                {"queries": -1},
                {"queries": 257},
                {"queries": 2**60},
                {"queries": 2**31 - 1, "cut": CUT(16, 2**23, 0, 0, 0, 0)},
                {"keys": 0},
                {"cut": CUT(0, 1, 0, 1, 0, 0)},
                {"cut": CUT(17, 1, 0, 1, 0, 0)},
                {"cut": CUT(15, 1, 0, 0, 0, 0)},
                {"cut": CUT(16, -1, 9, 0, 0, 0)},
                {"keys": 128, "cut": CUT(16, 1, 0, 0, 0, 16)},
                {"keys": 1024, "cut": CUT(16, 1, 0, 0, 0, 17)},
                {"keys": 1024, "cut": CUT(16, 1, 1, 0, 0, 16)},
                {"heads": 40000, "cut": CUT(80000, 1, 0, 0, 0, 0)},
                {"head": 80},
                {"dtype": FLOAT32},
                {"half_cut": CUT(16, 1, 0, 0, 0, 0)},
                {"half_cut": CUT(8, 0, 0, 0, 0, 0)},
                {"half_cut": CUT(8, 1, 0, 0, 0, 0), "differ": None},
                {"half_cut": CUT(8, 1, 0, 0, 0, 0), "images": 3, "cut": CUT(24, 1, 0, 0, 0, 0)},
            ],
            "cudaErrorMisalignedAddress": [{"out": 2}, {"half_cut": CUT(8, 1, 0, 0, 0, 0), "differ": 2}],
        },
    ),
    "sfast_add_layer_norm": (
        {"weight": None, "bias": None, "rows": 4, "channels": 320, "eps": 1e-5, "dtype": FLOAT16},
        {
            "cudaSuccess": [{"rows": 0}],
            "cudaErrorInvalidValue": [
                {"rows": -1},
                {"rows": 2**40},
                {"channels": 316},
                {"channels": 8 * 7},
                {"channels": 8 * 1024 * 5},
                {"residual": None},
                {"residual": None, "sum": None, "sum_bias": None},
                {"residual": None, "sum": None, "x_bias": None},
                {"dtype": load.INT64},
            ],
            "cudaErrorMisalignedAddress": [{"sum_bias": 8}, {"sum": 8}],
        },
    ),
    "sfast_conv2d_few": (
        {"bias": None, "n": 1, "height": 4, "width": 4, "c": 64, "channels": 4, "dtype": FLOAT16},
        {
            "cudaSuccess": [{"n": 0}],
            "cudaErrorInvalidValue": [
                {"n": 65536},
                {"height": -1},
                {"width": 2**31 - 1},
                {"c": 96},
                {"c": 0},
                {"channels": 9},
                {"dtype": FLOAT32},
            ],
            "cudaErrorMisalignedAddress": [{"x": 8}],
        },
    ),
    "sfast_linear_few": (
        {"bias": None, "residual": None, "rows": 2, "columns": 24, "depth": 64, "act": 1, "dtype": FLOAT16},
        {
            "cudaSuccess": [{"rows": 0}, {"columns": 0}],
            "cudaErrorInvalidValue": [
                {"rows": 9},
                {"rows": -1},
                {"columns": 2**40},
                {"depth": 0},
                {"depth": 12},
                {"depth": 2**24 + 8},
                {"act": 3},
                {"dtype": FLOAT32},
            ],
            "cudaErrorMisalignedAddress": [{"x": 8}, {"weight": 8}],
        },
    ),
    "sfast_sinusoids": (
        {"x_dtype": load.INT64, "x_stride": 1, "rows": 2, "count": 160, "sines_first": 0, "dtype": FLOAT16},
        {
            "cudaSuccess": [{"rows": 0}, {"count": 0}],
            "cudaErrorInvalidValue": [{"rows": -1}, {"rows": 2**24, "count": 2**8}, {"x_dtype": 4}, {"dtype": 3}],
        },
    ),
}


@pytest.mark.parametrize(
    ("function", "changed", "error"),
    [
        pytest.param(function, changed, error, id=f"{function}-{'-'.join(changed)}-{error}")
        for function, (_, refused) in REFUSED.items()
        for error, changes in refused.items()
        for changed in changes
    ],
)
def test_what_a_function_can_not_read_it_refuses(
    compiled: tuple[Path, str], function: str, changed: dict[str, Any], error: str
) -> None:
    library = load.open_library(compiled[0])
    addresses = dict.fromkeys(interface().functions[function].parameters, 16)
    given = {**addresses, "stream": None, **REFUSED[function][0], **changed}
    assert given.keys() == addresses.keys()
    assert load.error_name(library, getattr(library, function)(*given.values())) == error


def test_the_library_opens_and_answers(compiled: tuple[Path, str]) -> None:
    library = load.open_library(compiled[0])
    assert all(hasattr(library, name) for name in interface().functions)
    if not torch.cuda.is_available():
        for ask in [getattr(library, name) for name in interface().functions if name.endswith("_status")]:
            status = ask()
            assert status != 0 and load.error_name(library, status).startswith("cudaError")


def test_the_codes_are_those_of_the_sources() -> None:
    assert interface().constants == {
        **{f"SFAST_{str(dtype)[6:].upper()}": code for dtype, code in load.DTYPES.items()},
        "SFAST_INT64": load.INT64,
        "SFAST_SILU": load.SILU,
        "SFAST_ONE_KERNEL": load.ONE_KERNEL,
        "SFAST_TWO_KERNELS": load.TWO_KERNELS,
        **{f"SFAST_ACT_{name.upper()}": code for name, code in {**load.ACTS, **scaled_linear.ACTS}.items()},
        "SFAST_INT8": scaled_linear.KINDS[torch.int8],
        "SFAST_E4M3": scaled_linear.KINDS[torch.float8_e4m3fn],
    }


def test_a_library_from_other_sources_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(build, "LIBRARIES", tmp_path)
    load.forget()
    try:
        (tmp_path / f"sfast-000000000000-000000000000{build.SUFFIX}").write_bytes(b"of other sources")
        with pytest.raises(load.ExtensionUnavailable, match="isn't built") as first:
            load.library()
        with pytest.raises(load.ExtensionUnavailable, match="isn't built") as second:
            load.library()
        assert first.value is not second.value, "one that is kept keeps the frames of all who were told"
        load.forget()
        (tmp_path / f"sfast-{build.source_hash()}-000000000000{build.SUFFIX}").write_bytes(b"not a library")
        with pytest.raises(load.ExtensionUnavailable, match="can't be loaded"):
            load.library()
        target = Target(torch.device("cuda", 0), "a GPU", (9, 0), 132, 232448)
        reason = cuda_impl_reason(target, (2, 64, 8, 8))
        assert reason is not None and reason.startswith("cuda: the CUDA extension") and "can't be loaded" in reason
    finally:
        load.forget()


@pytest.mark.parametrize(
    ("target", "shape", "groups", "reason"),
    [
        (Target(torch.device("cpu")), (2, 64, 8, 8), 32, "needs CUDA"),
        (
            Target(torch.device("cuda", 0), capability=(7, 0)),
            (2, 64, 8, 8),
            32,
            "needs compute capability 7.5, this is 7.0",
        ),
        (Target(torch.device("cuda", 0), capability=(8, 0)), (2, 64, 8), 32, "x is 3-D, must be 4-D"),
        (
            Target(torch.device("cuda", 0), capability=(8, 0)),
            (2, 65, 8, 8),
            32,
            "65 channels are not a multiple of 32 groups",
        ),
        (
            Target(torch.device("cuda", 0), capability=(8, 0)),
            (1, 32, 65536, 32768),
            32,
            "images of 65536 x 32768 are too large",
        ),
        (
            Target(torch.device("cuda", 0), capability=(8, 0), shared_memory_bytes=49152),
            (2, 8192, 8, 8),
            32,
            "8192 channels need 66176 bytes of shared memory, a block here has 49152",
        ),
    ],
)
def test_group_norm_act_says_what_it_does_not_take(
    target: Target, shape: tuple[int, ...], groups: int, reason: str
) -> None:
    assert cuda_impl_reason(target, shape, groups) == f"cuda: {reason}"


def cuda_impl_reason(target: Target, shape: tuple[int, ...], groups: int = 32) -> str | None:
    """What the impl has against a fp16 input of this shape."""
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda"]
    return impl.why_not(target, torch.empty(shape, dtype=torch.float16, device="meta"), groups, None, None, 1e-5)
