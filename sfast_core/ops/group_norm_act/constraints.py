"""Reasons that the impls of group_norm_act share."""

from __future__ import annotations

import torch

from ..constraints import why_not_dtypes
from .reference import ACTS, channels_of


def why_not_arguments(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    act: str,
    channel_add: torch.Tensor | None,
    tail: torch.Tensor | None,
) -> str | None:
    """The reason why no kernel computes this, or None. The parameters are :func:`.reference.group_norm_act`'s."""
    if reason := why_not_dtypes(x=x, weight=weight, bias=bias, channel_add=channel_add, tail=tail):
        return reason
    if x.dim() != 4:
        return f"x is {x.dim()}-D, must be 4-D"
    if num_groups <= 0 or channels_of(x, tail) % num_groups:
        return f"{channels_of(x, tail)} channels are not a multiple of {num_groups} groups"
    if tail is not None and tail.dtype != x.dtype:
        return "tail and x differ in dtype"
    return None if act in ACTS else f"act {act!r} is not supported"
