"""The meaning of ``linear_geglu`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

APPROXIMATIONS = ("none", "tanh")


def linear_geglu(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str = "none") -> torch.Tensor:
    """``value * gelu(gate)`` where ``value, gate = (x @ weight.T + bias).chunk(2, -1)``.

    Args:
        x: [..., K].
        weight: [2 * I, K], the rows of the value first, those of the gate behind them; dtype as x.
        bias: [2 * I] or None, dtype as x.
        approximate: "none" (GELU with erf) or "tanh".

    Returns:
        [..., I], contiguous, in x's dtype.

    Raises:
        ValueError: ``weight`` has an odd number of rows.
    """
    if weight.shape[0] % 2:
        raise ValueError(f"linear_geglu: weight has {weight.shape[0]} rows, must be an even number (value rows, then gate rows)")
    value, gate = F.linear(x, weight, bias).chunk(2, -1)
    return value * F.gelu(gate, approximate=approximate)
