"""A 3x3 convolution of an image that was doubled by repeating its pixels."""

from __future__ import annotations

from ...machine.numerics import CUDNN
from ..needs import FLOATS, HALVES, HOPPER, Needs
from ..spec import Arguments, Impl, Op
from .reference import upsample_conv2d

__all__ = ["OP", "upsample_conv2d"]


def _family(call: Arguments) -> tuple[str, int]:
    return f"{call.x.dtype} {tuple(call.weight.shape)} {call.bias is not None}", call.x.numel()


_TRITON = Needs(triton=True, allowed=(CUDNN,), dtypes=FLOATS, typed="x weight bias")

OP = Op(
    name="upsample_conv2d",
    reference=upsample_conv2d,
    impls=(
        # no faster, and a kernel to compile
        Impl("triton_transposed", "triton_impl", superseded_by=("cuda",), needs=_TRITON),
        Impl("cudnn", needs=Needs((8, 0), allowed=(CUDNN,), dtypes=HALVES, alike="weight bias")),
        Impl("cuda", needs=HOPPER.of(dtypes=HALVES, alike="weight bias", extension="sfast_conv2d_status")),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    channels_last=True,
)
