"""A linear layer whose weight is quantised: numbers of 8 bits with a scale, one or one for each output feature."""

from __future__ import annotations

import math

from ..needs import HOPPER, Needs
from ..spec import Arguments, Impl, Op
from .reference import scaled_linear

__all__ = ["OP", "scaled_linear"]

_LARGE = 2**38  #: products: below, PyTorch's was the faster at all of 12 shapes (H100)


def _family(call: Arguments) -> tuple[str, int]:
    x, weight, input_scale = call.x, call.weight, call.input_scale
    scales = call.weight_scale.numel(), None if input_scale is None else input_scale.numel() > 1
    return f"{x.dtype} {weight.dtype} {tuple(weight.shape)} {scales} {call.bias is not None}", x.numel()


def _is_small(call: Arguments) -> bool:
    return math.prod(call.x.shape) * call.weight.shape[0] < _LARGE


_CUDA = HOPPER.of(extension="sfast_scaled_linear_status")
_TRITON = Needs(triton=True)

OP = Op(
    name="scaled_linear",
    reference=scaled_linear,
    impls=(
        Impl("cuda", needs=_CUDA),
        Impl("cuda_2", "cuda_impl", rank=1, carries_over=False, needs=_CUDA),
        Impl("cuda_3", "cuda_impl", rank=2, carries_over=False, needs=_CUDA),
        Impl("cuda_4", "cuda_impl", rank=3, carries_over=False, needs=_CUDA),
        Impl("scaled_mm", needs=Needs((8, 9))),
        Impl("scaled_mm_rows", needs=HOPPER),
        Impl("triton_tma", superseded_by=("cuda", "scaled_mm"), superseded_if=_is_small, needs=HOPPER.of(triton=True)),
        Impl("triton", superseded_by=("cuda", "scaled_mm", "triton_tma"), needs=_TRITON),
        Impl("triton_inside", needs=_TRITON),
        Impl("triton_before", needs=_TRITON),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    optional=True,
)
