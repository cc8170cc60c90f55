"""The meaning of ``upsample_conv2d`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..conv2d_act.reference import memory_format_of


def upsample_conv2d(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """``conv2d(interpolate(x, scale_factor=2, mode="nearest"), weight, bias, stride=1, padding=1)``.

    Args:
        x: [B, C, H, W], float.
        weight: [O, C, 3, 3], dtype as x.
        bias: [O] or None, dtype as x.

    Returns:
        [B, O, 2 * H, 2 * W] in x's dtype, channels_last if x is, otherwise contiguous.
    """
    out = F.conv2d(F.interpolate(x, scale_factor=2.0, mode="nearest"), weight, bias, stride=1, padding=1)
    return out.contiguous(memory_format=memory_format_of(x))
