"""The parts of ``upsample_conv2d``: the 4x4 weight, and what is no such convolution."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.ops.upsample_conv2d import OP, upsample_conv2d
from sfast_core.ops.upsample_conv2d.constraints import why_not_shapes
from sfast_core.target import Target

triton_impl = pytest.importorskip("sfast_core.ops.upsample_conv2d.triton_impl", reason="needs Triton")

CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
# Triton's interpreter rounds to bfloat16 toward zero.
DTYPES = (torch.float16, torch.float32, *((torch.bfloat16,) if CUDA else ()))
TAPS = ((2,), (1, 2), (0, 1), (0,))  #: which rows (columns) of the 3x3 weight each of the 4x4 one is the sum of


def normal(*shape: int, dtype: torch.dtype = torch.float32, channels_last: bool = True) -> torch.Tensor:
    values = torch.randn(shape, generator=torch.Generator().manual_seed(0)).to(DEVICE, dtype)
    return values.contiguous(memory_format=torch.channels_last) if channels_last and len(shape) == 4 else values


@pytest.fixture(autouse=True)
def _exact_float32() -> Iterator[None]:
    """No TF32 in PyTorch's convolutions."""
    before = torch.backends.cudnn.allow_tf32
    torch.backends.cudnn.allow_tf32 = False
    yield
    torch.backends.cudnn.allow_tf32 = before


@pytest.mark.parametrize("channels_last", [True, False])
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("outputs, channels", [(24, 16), (33, 72), (1, 1), (70, 200)])
def test_the_weight_is_sums_of_taps_rounded_once(
    outputs: int, channels: int, dtype: torch.dtype, channels_last: bool
) -> None:
    weight = normal(outputs, channels, 3, 3, dtype=dtype, channels_last=channels_last)
    got = triton_impl.transposed_weight(weight)
    assert (
        got.shape == (channels, outputs, 4, 4)
        and got.dtype == dtype
        and got.is_contiguous(memory_format=torch.channels_last)
    )
    tolerance = {torch.float16: 2**-11, torch.bfloat16: 2**-8, torch.float32: 2**-23}[dtype] * 1.01
    for r, rows in enumerate(TAPS):
        for c, columns in enumerate(TAPS):
            exact = sum(weight[:, :, row, column].double() for row in rows for column in columns)
            # Where terms cancel in float32, what is lost is relative to them.
            torch.testing.assert_close(got[:, :, r, c].t().double(), exact, rtol=tolerance, atol=2e-6)


def test_a_transposed_convolution_with_it_is_the_op() -> None:
    x, weight = normal(2, 16, 5, 3), normal(8, 16, 3, 3)
    got = F.conv_transpose2d(x, triton_impl.transposed_weight(weight), stride=2, padding=1)
    torch.testing.assert_close(got, upsample_conv2d(x, weight, None), rtol=1e-4, atol=1e-4)


def test_nothing_is_kept_of_a_weight() -> None:
    """Who writes to it in place reaches the next launch."""
    x, weight, bias = normal(1, 16, 4, 4), normal(8, 16, 3, 3), normal(8)
    triton_impl.launch(x, weight, bias)
    weight.mul_(-2)
    torch.testing.assert_close(
        triton_impl.launch(x, weight, bias), upsample_conv2d(x, weight, bias), rtol=1e-4, atol=1e-4
    )


@pytest.mark.gpu
@pytest.mark.parametrize("batch, channels, side", [(2, 1280, 32), (2, 640, 64), (1, 512, 128)])
def test_the_same_bits_at_every_run(batch: int, channels: int, side: int) -> None:
    x, weight, bias = (
        normal(*s, dtype=torch.float16)
        for s in ((batch, channels, side, side), (channels, channels, 3, 3), (channels,))
    )
    first = triton_impl.launch(x, weight, bias)
    assert all(torch.equal(triton_impl.launch(x, weight, bias), first) for _ in range(20))


def test_no_image_at_all() -> None:
    out = triton_impl.launch(normal(0, 16, 4, 3), normal(8, 16, 3, 3), None)
    assert out.shape == (0, 8, 8, 6)


X, WEIGHT, BIAS = (2, 16, 4, 4), (8, 16, 3, 3), (8,)


@pytest.mark.parametrize(
    "x, weight, bias, reason",
    [
        (X, WEIGHT, BIAS, None),
        (X, WEIGHT, None, None),
        ((16, 4, 4), WEIGHT, BIAS, "x is 3-D, must be 4-D"),
        (X, (8, 16, 1, 1), BIAS, "weight is [8, 16, 1, 1], must be [outputs, 16, 3, 3]"),
        (X, (8, 4, 3, 3), BIAS, "weight is [8, 4, 3, 3], must be [outputs, 16, 3, 3]"),
        (X, (8, 16, 3), BIAS, "weight is [8, 16, 3], must be [outputs, 16, 3, 3]"),
        (X, WEIGHT, (4,), "bias is [4], must be [8]"),
        ((2, 16, 32768, 32768), WEIGHT, BIAS, "2 images of 32768 x 32768 are too many pixels"),
    ],
)
def test_what_is_no_3x3_convolution_of_an_image(x: Any, weight: Any, bias: Any, reason: str | None) -> None:
    tensors = [None if shape is None else torch.empty(shape, device="meta") for shape in (x, weight, bias)]
    assert why_not_shapes(*tensors) == reason


@pytest.mark.parametrize(
    "channels, side, fits",
    [(1280, 32, True), (640, 64, True), (640, 32, True), (1280, 16, False), (1280, 8, False), (64, 2, True)],
)
def test_a_weight_far_larger_than_the_result_is_not_worth_its_memory(channels: int, side: int, fits: bool) -> None:
    target = Target(torch.device("cuda", 0), "everything", (9, 0), triton=True)
    x, weight = (
        torch.empty(2, channels, side, side, device="meta"),
        torch.empty(channels, channels, 3, 3, device="meta"),
    )
    assert (OP.impls[0].why_not(target, x, weight, None) is None) == fits


def test_dtypes_are_alike() -> None:
    x, weight = torch.empty(X, device="meta"), torch.empty(WEIGHT, device="meta", dtype=torch.float16)
    assert why_not_shapes(x, weight, None) == "weight is float16, x is float32"
