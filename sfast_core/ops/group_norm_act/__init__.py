"""GroupNorm over channels_last images, with an activation behind it and a per-channel addend before it."""

from __future__ import annotations

import torch

from ..spec import Impl, Op
from .reference import group_norm_act

__all__ = ["OP", "group_norm_act"]


def _family(x: torch.Tensor, num_groups: int, *rest: object) -> tuple[str, int]:
    extras = [isinstance(item, torch.Tensor) or item for item in rest]
    return f"{x.dtype} {x.shape[0]}x{x.shape[1]} {num_groups} {extras}", x.numel()


OP = Op(
    name="group_norm_act",
    reference=group_norm_act,
    impls=(
        Impl("triton", ".triton_impl", __package__),
        Impl("cuda", ".cuda_impl", __package__),
        Impl("cuda_cluster", ".cuda_cluster_impl", __package__),
    ),
    measured=True,
    family=_family,
    channels_last=True,
)
