"""Kernels for 8-bit linear layers against float32. Without a GPU in Triton's interpreter, which cuts float8 off where a GPU rounds."""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.hadamard import GROUPS, hadamard, rotate
from sfast_core.ops.linear_eight_bit.reference import linear_eight_bit
from sfast_core.ops.norm_quantise.reference import NORMS, norm_quantise
from sfast_core.ops.quantise_rows.reference import ACTS, GATED, quantise_rows, quantise_values

pytest.importorskip("triton")
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
INT8, FP8 = torch.int8, torch.float8_e4m3fn
#: Of values that are rounded the same but for a few at ties; the interpreter's float8 is up to a step of 1/8 away.
TOLERANCE = {INT8: 2e-3, FP8: 2e-3 if DEVICE.type == "cuda" else 9e-2}


def normal(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype).to(DEVICE)


def distance(q: torch.Tensor, scales: torch.Tensor, truth: tuple[torch.Tensor, torch.Tensor]) -> float:
    exact = truth[0].float() * truth[1]
    return ((q.float() * scales - exact).norm() / exact.norm()).item()


@pytest.mark.parametrize("size", GROUPS)
def test_rotating_twice_changes_nothing(size: int) -> None:
    matrix = hadamard(size, torch.float64)
    assert torch.equal(matrix, matrix.t())
    assert torch.allclose(matrix @ matrix, torch.eye(size, dtype=torch.float64))
    assert torch.allclose(matrix.sum(0), matrix.sum(0)[:1].expand(size))  # regular


def test_a_size_that_is_no_power_of_4_is_told() -> None:
    with pytest.raises(ValueError, match="size is 32, must be a power of 4"):
        hadamard(32)


@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
@pytest.mark.parametrize("rotation", [0, *GROUPS])
@pytest.mark.parametrize("act", ACTS)
def test_quantise_rows(act: str, rotation: int, dtype: torch.dtype) -> None:
    from sfast_core.ops.quantise_rows import triton_impl

    x = normal(3, 2, (2 if act in GATED else 1) * 768)
    q, scales = triton_impl.launch(x, dtype, act, rotation)
    truth = quantise_rows(x, dtype, act, rotation)
    assert (q.shape, q.dtype, scales.shape) == (truth[0].shape, dtype, truth[1].shape)
    assert distance(q, scales, truth) < TOLERANCE[dtype]


def test_rows_that_lie_apart_and_rows_of_zeros() -> None:
    from sfast_core.ops.quantise_rows import triton_impl

    x = normal(9, 200)[:, :100]
    x[4] = 0
    q, scales = triton_impl.launch(x, INT8)
    assert distance(q, scales, quantise_rows(x, INT8)) < TOLERANCE[INT8]
    assert not q[4].any() and torch.isfinite(scales).all()


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("rotation", [0, 64, 256])
@pytest.mark.parametrize("norm", NORMS)
def test_norm_quantise(norm: str, rotation: int, full: bool) -> None:
    from sfast_core.ops.norm_quantise import triton_impl

    x = normal(2, 5, 768)
    given = {"scale": normal(2, 1, 768, seed=1)}
    if full:
        names = ("weight", "bias", "x_bias")
        given |= {name: normal(768, seed=2 + i) for i, name in enumerate(names)}
        given |= {"shift": normal(1, 1, 768, seed=5), "gate": normal(2, 1, 768, seed=6), "residual": normal(2, 5, 768, seed=7)}
    total, q, scales = triton_impl.launch(x, INT8, norm, 1e-5, rotation=rotation, **given)
    expected, *truth = norm_quantise(x, INT8, norm, 1e-5, rotation=rotation, **given)
    assert torch.allclose(total, expected, atol=1e-2) and (total is x) is not full
    assert distance(q, scales, (truth[0], truth[1])) < TOLERANCE[INT8]


@pytest.mark.parametrize("dynamic", [False, True])
def test_one_scale_for_a_tensor_rounds_as_the_host_does(dynamic: bool) -> None:
    from sfast_core.ops.quantise_rows import triton_impl

    x = normal(37, 96, dtype=torch.bfloat16)
    scale = (x.abs().amax() / 448).float().reshape(1)
    if dynamic:
        q, found = triton_impl.quantise_dynamic(x, FP8)
        assert torch.allclose(found, scale, rtol=1e-2)
    else:
        q = triton_impl.quantise_tensor(x, scale, FP8)
    host = (x * (1 / scale).to(x.dtype)).clamp(-448, 448).to(FP8)
    assert distance(q, scale, (host, scale)) < TOLERANCE[FP8]


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("by_row", [False, True])
@pytest.mark.parametrize("way", ["launch_tma", "launch_pointers"])
@pytest.mark.parametrize("dtype", [INT8, FP8], ids=str)
def test_linear_eight_bit(dtype: torch.dtype, way: str, by_row: bool, gated: bool) -> None:
    triton_impl = pytest.importorskip("sfast_core.ops.linear_eight_bit.triton_impl")
    rows, depth, columns = 75, 208, 136
    x, weight, gate = (quantise_values(normal(size, depth, seed=seed).float(), dtype) for seed, size in enumerate((rows, columns, columns)))
    if not by_row:
        x, weight, gate = ((values, torch.tensor([2e-4], device=DEVICE)) for values, _ in (x, weight, gate))
    bias, gate_bias = normal(columns, seed=3), normal(columns, seed=4)
    more = (*gate, gate_bias) if gated else ()
    out = torch.empty(rows, columns, dtype=torch.float16, device=DEVICE)
    operands = triton_impl.Operands(*x, *weight, bias, *(more or (None, None, None)))
    getattr(triton_impl, way)(operands, out, "gelu_tanh", triton_impl.Cut(64, 64, 64, 4, 3), 2)
    truth = linear_eight_bit(*x, *weight, bias, torch.float32, "gelu_tanh", *more)
    assert ((out.float() - truth).norm() / truth.norm()).item() < 1e-3


def test_rotated_operands_have_the_product_of_the_plain_ones() -> None:
    x, weight = normal(7, 512).float(), normal(24, 512, seed=1).float()
    assert torch.allclose(rotate(x, 256) @ rotate(weight, 256).t(), x @ weight.t(), atol=1e-3)
