"""The meaning of ``group_moments`` in plain PyTorch."""

from __future__ import annotations

import torch


def group_moments(x: torch.Tensor, num_groups: int) -> torch.Tensor:
    """Mean and (biased) variance of one image's group of C / G neighbouring channels.

    Args:
        x: [B, C, ...], float.
        num_groups: G, which divides C.

    Returns:
        [B, 2, G] in float32: means, then variances.
    """
    grouped = x.reshape(x.shape[0], num_groups, -1)
    variance, mean = torch.var_mean(grouped.float(), -1, correction=0)
    return torch.stack([mean, variance], 1)
