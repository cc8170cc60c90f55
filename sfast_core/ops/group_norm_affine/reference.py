"""The meaning of ``group_norm_affine`` in plain PyTorch."""

from __future__ import annotations

import torch


def group_norm_affine(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """``(factor, shift)``, of which ``x * factor + shift`` is the GroupNorm of x: two numbers of each channel.

    Args:
        x: [B, C, H, W], float.
        num_groups: G, which divides C.
        weight: [C] or None (ones).
        bias: [C] or None (zeros).
        eps: added to the variance.

    Returns:
        Both [B, C], in float32 or x's dtype, whichever is wider. x is read once, nothing of its size is written.
    """
    wide = torch.promote_types(x.dtype, torch.float32)
    variance, mean = torch.var_mean(x.reshape(x.shape[0], num_groups, -1).to(wide), -1, correction=0)
    channels = x.shape[1] // num_groups
    factor = torch.rsqrt(variance + eps).repeat_interleave(channels, 1)
    factor = factor if weight is None else factor * weight.to(wide)
    shift = -mean.repeat_interleave(channels, 1) * factor
    return factor, shift if bias is None else shift + bias.to(wide)
