"""A convolution with what follows it: bias, a sum per channel, a residual and an activation."""

from __future__ import annotations

from ..spec import Impl, Op
from .reference import conv2d_act

__all__ = ["OP", "conv2d_act"]

OP = Op(
    name="conv2d_act",
    reference=conv2d_act,
    impls=(
        Impl("torch_epilogue", ".torch_epilogue_impl", __package__),
        Impl("cudnn", ".cudnn_impl", __package__),
        Impl("cudnn_2", ".cudnn_2_impl", __package__),
        Impl("cudnn_3", ".cudnn_3_impl", __package__),
    ),
    measured=True,
    channels_last=True,
)
