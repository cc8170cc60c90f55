"""``norm_quantise`` by its kernel has the bits of a norm that is written down and then quantised, each by its own
kernel.
"""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from sfast_core.ops.norm_quantise import OP, norm_quantise
from sfast_core.ops.quantise import quantise
from tests.ops.case import Data
from tests.targets import H100

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
E4M3 = torch.float8_e4m3fn
HOW = {
    "int8": (torch.int8, None, 0),
    "int8, rotated by 16": (torch.int8, None, 16),
    "int8, rotated by 256": (torch.int8, None, 256),
    "float8": (E4M3, 0.02, 0),
}


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("summed", [False, True])
def test_a_modulated_layer_norm_has_the_bits_of_two_kernels(how: str, summed: bool, dtype: torch.dtype) -> None:
    from sfast_core.ops.ada_layer_norm import triton_impl as ada
    from sfast_core.ops.norm_quantise import triton_impl
    from sfast_core.ops.quantise import triton_rows_impl, triton_tensor_impl

    number, factor, rotate = HOW[how]
    data, given = Data(dtype, DEVICE), None if factor is None else torch.tensor(factor, device=DEVICE)
    x, scale, shift = data.normal(2, 2, 768, mean=0.3), *data.normal(2, 1, 1536, std=0.4).chunk(2, -1)
    residual, gate = (data.normal(2, 2, 768), data.normal(2, 1, 768)) if summed else (None, None)
    total, normed = ada.launch(x, scale, shift, 1e-6, residual, gate)
    q, factors = (triton_rows_impl if given is None else triton_tensor_impl).launch(normed, number, given, rotate)
    found = triton_impl.launch(x, "layer", 1e-6, number, given, rotate, None, None, scale, shift, residual, gate)
    assert torch.equal(found[0], total) and torch.equal(found[2], factors) and torch.equal(found[1].float(), q.float())


@pytest.mark.parametrize("how", HOW)
def test_the_meaning_is_that_of_the_two_ops(how: str) -> None:
    number, factor, rotate = HOW[how]
    data, given = Data(torch.float32, torch.device("cpu")), None if factor is None else torch.tensor(factor)
    x, residual, (scale, shift, gate) = data.normal(2, 5, 256), data.normal(2, 5, 256), data.normal(3, 2, 1, 256)
    total, normed = ada_layer_norm(x, scale, shift, 1e-6, residual, gate)
    found = norm_quantise(x, "layer", 1e-6, number, given, rotate, None, None, scale, shift, residual, gate)
    for mine, expected in zip(found, (total, *quantise(normed, number, given, rotate)), strict=True):
        assert torch.equal(mine.float(), expected.float())


ROW, VECTOR, X = (torch.empty(shape, dtype=torch.float16, device="meta") for shape in ((2, 1, 64), (64,), (2, 5, 64)))
REASONS = {
    "norm is": ((X, "group", 1e-6, torch.int8), {}),
    "is for float8 with one scale": ((X, "rms", 1e-6, torch.int8, torch.ones(())), {}),
    "doesn't divide": ((X, "rms", 1e-6, torch.int8, None, 256), {}),
    "longer than": ((X.new_empty(2, 5, 8448), "rms", 1e-6, torch.int8), {}),
    "gate without a residual": ((X, "rms", 1e-6, torch.int8), {"gate": ROW}),
    "x_weight without a residual": ((X, "rms", 1e-6, torch.int8), {"x_weight": VECTOR}),
    'x_weight with norm "layer"': ((X, "layer", 1e-6, torch.int8), {"x_weight": VECTOR, "residual": X}),
    'bias with norm "rms"': ((X, "rms", 1e-6, torch.int8), {"bias": VECTOR}),
    "residual is": ((X, "rms", 1e-6, torch.int8), {"residual": X[:1]}),
    "weight is": ((X, "layer", 1e-6, torch.int8), {"weight": VECTOR.float()}),
    "scale is": ((X, "rms", 1e-6, torch.int8), {"scale": ROW[..., 1:]}),
    "an offset without a weight": ((X, "rms", 1e-6, torch.int8), {"offset": 1.0}),
    "part is 0": ((X, "rms", 1e-6, torch.int8), {"scale": ROW, "part": 0}),
    "rows for 2 and 5 parts": ((X, "rms", 1e-6, torch.int8), {"scale": X[:, :2], "shift": X}),
    "shift with x of 2 dimensions": ((X[0], "rms", 1e-6, torch.int8), {"shift": ROW}),
}


@pytest.mark.parametrize("reason", REASONS)
def test_why_not(reason: str) -> None:
    arguments, more = REASONS[reason]
    assert reason in str(OP.impls[0].why_not(H100, *arguments, **more))
