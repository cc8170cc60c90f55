"""``quantise`` by its kernels has the reference's bits, not only its accuracy: a host that quantises the same input
gets the same numbers.
"""

from __future__ import annotations

import pytest
import torch

from sfast_core.ops.quantise import quantise
from sfast_core.ops.quantise.reference import ACTS
from tests.ops.case import Data

pytest.importorskip("triton")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
#: Triton's interpreter rounds to bfloat16 toward zero.
DTYPES = (torch.float16, torch.float32, *([torch.bfloat16] if CUDA else []))


def rows(dtype: torch.dtype, *shape: int) -> torch.Tensor:
    """Rows of very different sizes, one of them zeros, one so small that its scale is no normal number of float16, one
    with many ties.
    """
    x = Data(dtype, DEVICE).normal(*shape, std=3.0)
    x[0], x[1], x[2, 0] = 0, x[1] * 1e-6, 127.0
    x[2, 1:] = torch.arange(shape[-1] - 1, device=DEVICE) % 256 / 2 - 64
    x[3] *= 100
    return x


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("channels", [90, 256, 1000, 3072])
def test_rows_have_the_bits_of_the_reference(dtype: torch.dtype, channels: int) -> None:
    from sfast_core.ops.quantise import triton_rows_impl

    x = rows(dtype, 9, channels)
    q, scales = triton_rows_impl.launch(x, torch.int8)
    expected, factors = quantise(x, torch.int8)
    assert torch.equal(scales, factors) and torch.equal(q, expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rotate", [16, 64, 256])
def test_rotated_rows_differ_where_sums_in_another_order_round_otherwise_alone(dtype: torch.dtype, rotate: int) -> None:
    from sfast_core.ops.quantise import triton_rows_impl

    x = rows(dtype, 20, 768)
    x[5:, 7] *= 50
    q, scales = triton_rows_impl.launch(x, torch.int8, None, rotate)
    expected, factors = quantise(x, torch.int8, None, rotate)
    assert torch.allclose(scales, factors, rtol=1e-6, atol=0)
    differing = (q.int() - expected.int()).abs()
    assert differing.max() <= 1 and (differing > 0).float().mean() < 2e-3


@pytest.mark.parametrize("number", [torch.float8_e4m3fn, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("scale", [1.0, 0.01, 3e-5])
def test_a_tensor_has_the_bits_of_the_reference(scale: float, dtype: torch.dtype, number: torch.dtype) -> None:
    from sfast_core.ops.quantise import triton_tensor_impl

    x = rows(dtype, 9, 1000)
    given = torch.tensor(scale, device=DEVICE)
    q, copy = triton_tensor_impl.launch(x, number, given)
    expected, same = quantise(x, number, given)
    assert torch.equal(copy, same) and torch.equal(q.float(), expected.float())  # minus zero is zero


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("number", [torch.int8, torch.float8_e4m3fn], ids=str)
def test_what_is_made_first_is_what_pytorchs_kernels_make(number: torch.dtype, act: str, dtype: torch.dtype) -> None:
    """Every step is rounded as by PyTorch's kernels one after another.

    An activation has another last bit here and there: then a number is the next.
    """
    from sfast_core.ops.quantise import triton_rows_impl, triton_tensor_impl

    impl = triton_rows_impl if number is torch.int8 else triton_tensor_impl
    scale = None if number is torch.int8 else torch.tensor(0.02, device=DEVICE)
    data = Data(dtype, DEVICE)
    x, times, front = data.normal(2, 700, 1024, std=3.0)[:, 100:], data.normal(2, 600, 1024), data.normal(2, 600, 256)
    for made in ((), (times,), (None, front), (times, front)):
        got, expected = impl.launch(x, number, scale, 0, act, *made), quantise(x, number, scale, 0, act, *made)
        torch.testing.assert_close(got[1], expected[1], rtol=max(1e-6, torch.finfo(dtype).eps), atol=0)
        apart = (got[0].float() - expected[0].float()).norm() / expected[0].float().norm()
        assert apart <= 3e-3
