"""GroupNorm over channels_last images, with an activation behind it and a per-channel addend before it."""

from __future__ import annotations

from ..spec import Impl, Op
from .reference import group_norm_act

__all__ = ["OP", "group_norm_act"]

OP = Op(
    name="group_norm_act",
    reference=group_norm_act,
    impls=(
        Impl("triton", ".triton_impl", __package__),
        Impl("cuda", ".cuda_impl", __package__),
    ),
    measured=True,
    channels_last=True,
)
