"""What every kernel asks of the tensors that are added up."""

from __future__ import annotations

import torch


def why_not_sum(x: torch.Tensor, residual: torch.Tensor | None, x_bias: torch.Tensor | None) -> str | None:
    """The reason why ``x + x_bias + residual`` is not one of rows alike, or None."""
    if x.dim() == 0:
        return "x has no dimension"
    if residual is not None and residual.shape != x.shape:
        return f"residual of shape {tuple(residual.shape)} is broadcast to {tuple(x.shape)}"
    if residual is not None and residual.dtype != x.dtype:
        return f"residual is {residual.dtype}, x is {x.dtype}"
    if x_bias is not None and residual is None:
        return "x_bias without a residual"
    if x_bias is not None and (x_bias.dtype != x.dtype or x_bias.shape != x.shape[-1:]):
        return f"x_bias is {list(x_bias.shape)} {x_bias.dtype}, must be {list(x.shape[-1:])} {x.dtype}"
    return None
