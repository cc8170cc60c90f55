"""The meaning of ``gated_sum`` in plain PyTorch."""

from __future__ import annotations

import torch

ACTS = ("none", "sigmoid")


def gated_sum(
    x: torch.Tensor, gate: torch.Tensor, residual: torch.Tensor | None = None, act: str = "none"
) -> torch.Tensor:
    """``residual + act(gate) * x``.

    Args:
        x: [B, L, C], float.
        gate: [B or 1, L or 1, C] in x's dtype.
        residual: as x in shape and dtype, or None (zeros).
        act: "none" or "sigmoid".

    Returns:
        As x, contiguous. An impl rounds only this.

    Raises:
        ValueError: act is none of the above.
    """
    if act not in ACTS:
        raise ValueError(f"gated_sum: act is {act!r}, must be one of {', '.join(ACTS)}")
    if act == "sigmoid":
        gate = gate.sigmoid()
    return (gate * x if residual is None else torch.addcmul(residual, gate, x)).contiguous()
