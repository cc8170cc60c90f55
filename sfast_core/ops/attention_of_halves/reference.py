"""The meaning of ``attention_of_halves`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..attention import attention


def attention_of_halves(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """:func:`attention` without a mask.

    Says no more than that it may pay to look whether ``x[: B // 2]`` is ``x[B // 2 :]`` in all three.

    Args:
        q: [B, H, L, D], B even.
        k: [B, H, S, D].
        v: [B, H, S, D].
        scale: None for 1 / sqrt(D).

    Returns:
        as :func:`attention`.
    """
    return attention(q, k, v, scale=scale)
