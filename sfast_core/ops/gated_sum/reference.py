"""The meaning of ``gated_sum`` in plain PyTorch."""

from __future__ import annotations

import torch

from ..token_rows import broadcast

ACTS = ("none", "sigmoid")


def gated_sum(
    x: torch.Tensor, gate: torch.Tensor, residual: torch.Tensor | None = None, act: str = "none", part: int = 1
) -> torch.Tensor:
    """``residual + act(gate) * x``.

    Args:
        x: [B, L, C], float.
        gate: [B or 1, P, C] in x's dtype: 1 row for all tokens, or as :func:`.of_each_token` takes them.
        residual: as x in shape and dtype, or None (zeros).
        act: "none" or "sigmoid".
        part: how many tokens have one of several rows.

    Returns:
        As x, contiguous. An impl rounds only this.

    Raises:
        ValueError: act is none of the above.
    """
    if act not in ACTS:
        raise ValueError(f"gated_sum: act is {act!r}, must be one of {', '.join(ACTS)}")
    if act == "sigmoid":
        gate = gate.sigmoid()
    gate = broadcast(gate, part, x.shape[1])
    return (gate * x if residual is None else torch.addcmul(residual, gate, x)).contiguous()
