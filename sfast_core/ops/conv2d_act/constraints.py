"""Reasons that several impls of ``conv2d_act`` share.

Each function gives a reason in words, or None where nothing stands in the way.
"""

from __future__ import annotations

import torch

from ..spec import Arguments
from .reference import pair


def why_not_plain(call: Arguments) -> str | None:
    """Whether it is an image that is not empty, and each of its channels goes into each sum, from taps side by side."""
    if call.x.dim() != 4 or call.x.numel() == 0 or call.weight.numel() == 0:
        return f"x is {list(call.x.shape)}, must be 4-D and not empty"
    if isinstance(call.padding, str) or pair(call.dilation) != (1, 1) or call.groups != 1:
        return "dilated and grouped convolutions, and paddings by name, are not supported"
    return None


def why_not_residual(residual: torch.Tensor | None, out: tuple[int, ...]) -> str | None:
    """Whether ``residual`` has the shape of the result."""
    return (
        None if residual is None or tuple(residual.shape) == out else f"residual of {list(residual.shape)} is broadcast"
    )


def why_not_channel_add(channel_add: torch.Tensor | None, images: int, channels: int) -> str | None:
    """Whether ``channel_add`` has a row for each image, or one for all."""
    if channel_add is None or tuple(channel_add.shape) in ((1, channels), (images, channels)):
        return None
    return f"channel_add is {list(channel_add.shape)}, must be [1 or {images}, {channels}]"
