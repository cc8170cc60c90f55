"""What every kernel asks of the tensors that are added up."""

from __future__ import annotations

import torch


def why_not_sum(x: torch.Tensor, residual: torch.Tensor | None, **biases: torch.Tensor | None) -> str | None:
    """The reason why the sum of ``x``, ``residual`` and ``biases`` is not one of rows alike, or None."""
    if x.dim() == 0:
        return "x has no dimension"
    if residual is not None and residual.shape != x.shape:
        return f"residual of shape {tuple(residual.shape)} is broadcast to {tuple(x.shape)}"
    if residual is not None and residual.dtype != x.dtype:
        return f"residual is {residual.dtype}, x is {x.dtype}"
    for name, bias in biases.items():
        if bias is not None and residual is None:
            return f"{name} without a residual"
        if bias is not None and (bias.dtype != x.dtype or bias.shape != x.shape[-1:]):
            return f"{name} is {list(bias.shape)} {bias.dtype}, must be {list(x.shape[-1:])} {x.dtype}"
    return None
