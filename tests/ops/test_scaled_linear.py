"""What the kernels of a quantised linear layer take, and that each way of cutting the CUDA extension's gives the same
result.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.native import load
from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_linear import OP, cuda_impl, scaled_linear
from sfast_core.ops.scaled_linear.cuda_impl import ACTS, Gate, Tiling
from sfast_core.ops.spec import Arguments
from sfast_core.target import Target
from tests.ops.case import Data
from tests.targets import A100, B200, H100, RTX_4090

E4M3, E5M2, BF16 = torch.float8_e4m3fn, torch.float8_e5m2, torch.bfloat16


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def call(
    kind: torch.dtype = torch.int8,
    rows: int = 512,
    columns: int = 640,
    depth: int = 320,
    weight_scale: tuple[int, ...] = (),
    input_scale: tuple[int, ...] | None = (),
    x: torch.dtype | None = None,
    bias: torch.dtype | None = BF16,
    out: torch.dtype = BF16,
) -> tuple[Any, ...]:
    """Arguments of ``scaled_linear``, with shapes of the scales."""
    shift = None if bias is None else meta(columns, dtype=bias)
    factor = None if input_scale is None else meta(*input_scale)
    return meta(rows, depth, dtype=x or kind), meta(columns, depth, dtype=kind), meta(*weight_scale), shift, factor, out


def takers(target: Target, args: tuple[Any, ...]) -> set[str]:
    """The names of the impls that can compute this, without those that stand behind another."""
    fitting = [impl for impl in OP.impls if impl.why_not(target, *args) is None]
    return {impl.name for impl in fitting if not impl.superseded(fitting, Arguments.of(OP.reference, *args))}


CUDA_WAYS = {"cuda", "cuda_2", "cuda_3", "cuda_4"}


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (H100, call(weight_scale=(640, 1), input_scale=(512, 1)), CUDA_WAYS),
        (H100, call(bias=torch.float32), CUDA_WAYS),
        (H100, call(E4M3), {*CUDA_WAYS, "scaled_mm", "scaled_mm_rows"}),
        (H100, call(E4M3, out=torch.float16, bias=torch.float16), {*CUDA_WAYS, "scaled_mm"}),
        (
            H100,
            call(E4M3, rows=16384, columns=14336, depth=3072),
            {*CUDA_WAYS, "scaled_mm", "scaled_mm_rows", "triton_tma"},
        ),
        (H100, call(E5M2), {"triton"}),
        (H100, call(depth=100), {"triton"}),
        (A100, call(weight_scale=(640, 1), input_scale=(512, 1)), {"triton"}),
        (A100, call(E4M3), set()),
        (RTX_4090, call(E4M3), {"scaled_mm"}),
        (RTX_4090, call(), {"triton"}),
        (B200, call(), {"triton"}),
        (A100, call(input_scale=None, x=BF16), {"triton_inside", "triton_before"}),
        (A100, call(E4M3, input_scale=None, x=BF16), set()),
        (RTX_4090, call(E4M3, input_scale=None, x=BF16), {"triton_inside", "triton_before"}),
    ],
)
def test_who_computes_what(asked: list[str], target: Target, args: tuple[Any, ...], expected: set[str]) -> None:
    pytest.importorskip("triton")
    assert takers(target, args) == expected


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        (call(E5M2), "x is float8_e5m2, weight float8_e5m2, must be the same of int8, float8_e4m3fn"),
        (call(x=E4M3), "x is float8_e4m3fn, weight int8, must be the same"),
        (call(columns=644), "weight is [644, 320], must be multiples of 8 and 16"),
        (
            call(input_scale=(5, 1)),
            "input_scale is float32 [5, 1], must be one float32 or one for each row of [512, 320]",
        ),
        (call(weight_scale=(7,)), "weight_scale is float32 [7], must be one float32 or 640"),
        (call(input_scale=None), "x isn't quantised"),
        (call(rows=0), "x or weight is empty"),
        (call(out=torch.float32), "the result is float32, must be float16 or bfloat16"),
        (call(bias=torch.int64), "bias is int64 [640], must be 640 of float16, bfloat16 or float32"),
    ],
)
def test_the_extension_says_what_it_does_not_take(asked: list[str], args: tuple[Any, ...], expected: str) -> None:
    assert (OP.impls[0].why_not(H100, *args) or "").removeprefix("cuda: ").startswith(expected) and not asked


def test_a_layer_that_is_rotated_is_left_where_its_input_is_not() -> None:
    assert not takers(H100, (*call(input_scale=None, x=BF16), 64))


def test_few_rows_are_shared_by_few_blocks() -> None:
    shared = {rows: Tiling(128, 4, 8).fitting(rows).sharing for rows in (1, 128, 129, 384, 385, 5000)}
    assert shared == {1: 1, 128: 1, 129: 2, 384: 2, 385: 4, 5000: 4} and Tiling(256, 2, 4).fitting(5000).sharing == 2


def _activated(value: torch.Tensor, act: str) -> torch.Tensor:
    if act in ("gelu", "gelu_tanh"):
        return F.gelu(value, approximate="tanh" if act == "gelu_tanh" else "none")
    return F.silu(value) if act == "silu" else value


@pytest.mark.gpu
@pytest.mark.parametrize(
    "rows_of",
    [(128, 128, 128), (300, 208, 136), (1, 16, 8), (129, 3072, 264), (1024, 512, 768), (2500, 640, 1000)],
    ids=str,
)
@pytest.mark.parametrize("sharing", [1, 2, 4])
@pytest.mark.parametrize("columns", [128, 192, 256, "gated"])
@pytest.mark.parametrize("kind", [torch.int8, E4M3], ids=str)
def test_each_tiling_computes_the_same(
    kind: torch.dtype, columns: int | str, sharing: int, rows_of: tuple[int, int, int]
) -> None:
    device = torch.device("cuda")
    if reason := load.why_not(device, "sfast_scaled_linear_status"):
        pytest.skip(reason)
    rows, depth, width = rows_of
    for turn, (dtype, act) in enumerate(zip((torch.float16, torch.bfloat16) * 2, ACTS, strict=True)):
        data = Data(dtype, device, turn)
        given = None if kind == torch.int8 else torch.tensor(0.02, device=device)
        (x, input_scale), (weight, scale), (gate_weight, gate_scale) = (
            quantise(data.normal(size, depth, dtype=torch.float32), kind, given) for size in (rows, width, width)
        )
        bias, gate_bias = data.normal(width), data.normal(width)
        gate = Gate(gate_weight, gate_scale, gate_bias) if columns == "gated" else None
        tiling = Tiling(256 if isinstance(columns, str) else columns, sharing, 3)
        out = cuda_impl.launch_tiled(tiling, x, weight, scale, bias, input_scale, dtype, act, gate)
        truth = scaled_linear(x, weight, scale, bias, input_scale, torch.float32)
        if gate is None:
            truth = _activated(truth, act)
        else:
            truth *= _activated(scaled_linear(x, gate_weight, gate_scale, gate_bias, input_scale, torch.float32), act)
        assert ((out.float() - truth).norm() / truth.norm()).item() < (4e-3 if dtype == BF16 or kind == E4M3 else 6e-4)
        assert torch.equal(out, cuda_impl.launch_tiled(tiling, x, weight, scale, bias, input_scale, dtype, act, gate))
