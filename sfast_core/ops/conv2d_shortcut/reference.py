"""The meaning of ``conv2d_shortcut`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ..conv2d_act.reference import IntOrPair, memory_format_of
from ..group_norm_act.reference import joined


def conv2d_shortcut(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: IntOrPair,
    shortcut: torch.Tensor,
    shortcut_weight: torch.Tensor,
    shortcut_bias: torch.Tensor | None,
    tail: torch.Tensor | None = None,
) -> torch.Tensor:
    """``conv2d(x, weight, bias, padding=padding) + conv2d(cat(shortcut, tail), shortcut_weight, shortcut_bias)``.

    Args:
        x: [B, C, H, W], float.
        weight: [O, C, R, S], dtype as x.
        bias: [O] or None, dtype as x.
        padding: an int, or one int each for height and width.
        shortcut: [B, D, H', W'], dtype as x, in the size of the result; with ``tail`` [B, D - D', H', W'].
        shortcut_weight: [O, D, 1, 1], dtype as x.
        shortcut_bias: as ``bias``.
        tail: [B, D', H', W'], dtype as x, whose channels come behind the shortcut's, or None.

    Returns:
        [B, O, H', W'] in x's dtype, channels_last if x is, otherwise contiguous.
    """
    out = F.conv2d(x, weight, bias, padding=padding)
    out = out + F.conv2d(joined(shortcut, tail), shortcut_weight, shortcut_bias)
    return out.contiguous(memory_format=memory_format_of(x))
