"""The meaning of ``linear_act`` in plain PyTorch."""

from __future__ import annotations

import torch
import torch.nn.functional as F

ACTS = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu")


def linear_act(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> torch.Tensor:
    """``act(x @ weight.T + bias)``.

    Args:
        x: [..., K], float.
        weight: [N, K] in x's dtype.
        bias: [N] in x's dtype, or None (zeros).
        act: "gelu" (by erf), "gelu_tanh" (its tanh form), "quick_gelu" (``h * sigmoid(1.702 h)``), "silu" or "relu".

    Returns:
        [..., N] in x's dtype, contiguous.

    Raises:
        ValueError: act is none of the above.
    """
    h = F.linear(x, weight, bias)
    if act == "gelu":
        return F.gelu(h)
    if act == "gelu_tanh":
        return F.gelu(h, approximate="tanh")
    if act == "quick_gelu":
        return h * torch.sigmoid(1.702 * h)
    if act == "silu":
        return F.silu(h)
    if act == "relu":
        return F.relu(h)
    raise ValueError(f"linear_act: act is {act!r}, must be one of {', '.join(ACTS)}")
