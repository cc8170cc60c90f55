"""Reasons that ops share which compute rows of channels: what is added to them, and what multiplies and shifts them."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def why_not_sum(x: torch.Tensor, residual: torch.Tensor | None, **vectors: torch.Tensor | None) -> str | None:
    """The reason why the sum of ``x`` (..., C) and ``residual`` is not one of rows alike, or None. ``vectors``: (C,),
    which ``x`` gets only on its way into a sum.
    """
    if x.dim() == 0:
        return "x has no dimension"
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        return f"residual is {list(residual.shape)} {residual.dtype}, x is {list(x.shape)} {x.dtype}"
    return why_without(residual, vectors) or why_not_vectors(x, **vectors)


def why_without(residual: torch.Tensor | None, others: Mapping[str, torch.Tensor | None]) -> str | None:
    """The reason why ``others``, which only sums have, stand without a residual, or None."""
    name = next((name for name, other in others.items() if residual is None and other is not None), None)
    return f"{name} without a residual" if name else None


def why_not_vectors(x: torch.Tensor, *dtypes: torch.dtype, **vectors: torch.Tensor | None) -> str | None:
    """The reason why one of ``vectors`` isn't (C,) in the dtype of ``x`` (..., C) or in one of ``dtypes``, or None."""
    for name, vector in vectors.items():
        if vector is not None and (vector.shape != x.shape[-1:] or vector.dtype not in (x.dtype, *dtypes)):
            return f"{name} is {list(vector.shape)} {vector.dtype}, must be {list(x.shape[-1:])} {x.dtype}"
    return None


def why_not_modulation(x: torch.Tensor, part: int, **rows: torch.Tensor | None) -> str | None:
    """The reason why one of ``rows`` isn't one row for each image of ``x`` (B, L, C) or for all, (B or 1, 1, C), or as
    many of them as others have (B or 1, P, C), each for ``part`` tokens; None where all are.
    """
    if part < 1:
        return f"part is {part}, must be at least 1"
    parts = {row.shape[1] for row in rows.values() if row is not None and row.dim() == 3} - {1}
    if len(parts) > 1:
        return f"rows for {' and '.join(map(str, sorted(parts)))} parts of the tokens"
    for name, row in rows.items():
        if row is None:
            continue
        if x.dim() != 3:
            return f"{name} with x of {x.dim()} dimensions, must have 3"
        images, _, channels = x.shape
        if row.dim() != 3 or row.shape[0] not in (1, images) or row.shape[2] != channels or row.dtype != x.dtype:
            return f"{name} is {list(row.shape)} {row.dtype}, must be {[images, row.shape[1], channels]} {x.dtype}"
    return None
