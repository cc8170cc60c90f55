"""The end of a residual block that changes the number of channels: its last convolution and its shortcut's."""

from __future__ import annotations

from ..needs import HALVES, HOPPER
from ..spec import Impl, Op
from .reference import conv2d_shortcut

__all__ = ["OP", "conv2d_shortcut"]

_NEEDS = HOPPER.of(
    dtypes=HALVES, alike="weight bias shortcut shortcut_weight shortcut_bias tail", extension="sfast_conv2d_status"
)

OP = Op(
    name="conv2d_shortcut",
    reference=conv2d_shortcut,
    impls=(Impl("cuda", needs=_NEEDS),),
    optional=True,
    channels_last=True,
)
