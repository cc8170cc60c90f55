"""Reasons that the impls of ``quantise`` share."""

from __future__ import annotations

import torch

from .reference import ACTS

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def width(x: torch.Tensor, front: torch.Tensor | None) -> int:
    """How many numbers a row has."""
    return x.shape[-1] + (0 if front is None else front.shape[-1])


def why_not_source(
    x: torch.Tensor, act: str | None, times: torch.Tensor | None, front: torch.Tensor | None
) -> str | None:
    """Whether rows can be made of these: tensors of one dtype, with as many rows."""
    if x.dim() == 0 or x.numel() == 0:
        return f"x is {list(x.shape)}"
    if act is not None and act not in ACTS:
        return f"act is {act!r}, must be one of {', '.join(ACTS)}"
    if times is not None and (times.shape != x.shape or times.dtype != x.dtype):
        return f"times is {times.dtype} {list(times.shape)}, x {x.dtype} {list(x.shape)}"
    if front is not None and (
        front.dim() != x.dim() or front.shape[:-1] != x.shape[:-1] or front.dtype != x.dtype or front.numel() == 0
    ):
        return f"front is {front.dtype} {list(front.shape)}, x {x.dtype} {list(x.shape)}"
    return None
