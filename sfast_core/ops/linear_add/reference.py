"""The meaning of ``linear_add`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def linear_add(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor) -> torch.Tensor:
    """``x @ weight.T + bias + residual``.

    Args:
        x: [..., K], float.
        weight: [N, K] in x's dtype.
        bias: [N] in x's dtype, or None (zeros).
        residual: [..., N] in x's dtype.

    Returns:
        [..., N] in x's dtype, contiguous. An impl may leave the product unrounded until all is added.
    """
    return (F.linear(x, weight, bias) + residual).contiguous()
