"""A convolution with what follows it: bias, a sum per channel, a residual and an activation."""

from __future__ import annotations

import torch

from ...machine.numerics import CUDNN
from ..needs import FLOATS, HALVES, HOPPER, Needs
from ..spec import Arguments, Impl, Op
from .reference import conv2d_act

__all__ = ["OP", "conv2d_act"]


def _family(call: Arguments) -> tuple[str, int]:
    x, weight, bias, *rest = vars(call).values()
    extras = [isinstance(item, torch.Tensor) or item for item in rest]
    return f"{x.dtype} {tuple(weight.shape)} {bias is not None} {extras}", x.numel()


_EXTRAS = "weight bias residual channel_add"
_CUDNN = Needs((8, 0), allowed=(CUDNN,), dtypes=HALVES, alike="weight bias")

OP = Op(
    name="conv2d_act",
    reference=conv2d_act,
    impls=(
        Impl(
            "torch_epilogue",
            superseded_by=("cudnn", "cuda", "cuda_few"),  # more passes, and a compilation for each kind
            needs=Needs(triton=True, dtypes=FLOATS, typed=f"x {_EXTRAS}"),
        ),
        Impl("cudnn", needs=_CUDNN),
        Impl("cudnn_2", "cudnn_impl", rank=1, needs=_CUDNN),
        Impl("cudnn_3", "cudnn_impl", rank=2, needs=_CUDNN),
        Impl("cuda", needs=HOPPER.of(dtypes=HALVES, alike=_EXTRAS, extension="sfast_conv2d_status")),
        Impl("cuda_few", needs=Needs((8, 0), dtypes=HALVES, alike="weight bias", extension="sfast_conv2d_few_status")),
        Impl("triton_split", needs=Needs(triton=True, dtypes=HALVES, alike=_EXTRAS)),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    channels_last=True,
)
