"""The first half of a gated feed-forward layer whose weights are quantised: a linear layer times the activation of
another.
"""

from __future__ import annotations

import torch

from ..needs import HOPPER
from ..spec import Impl, Op
from .reference import scaled_glu

__all__ = ["OP", "scaled_glu"]


def _family(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_scale: torch.Tensor,
    bias: torch.Tensor | None,
    *_: object,
) -> tuple[str, int]:
    return f"{x.dtype} {tuple(weight.shape)} {weight_scale.numel()} {bias is not None}", x.numel()


_NEEDS = HOPPER.of(extension="sfast_scaled_linear_status")

OP = Op(
    name="scaled_glu",
    reference=scaled_glu,
    impls=(
        Impl("cuda", ".cuda_impl", __package__, needs=_NEEDS),
        Impl("cuda_2", ".cuda_impl", __package__, "launch_second", carries_over=False, needs=_NEEDS),
    ),
    measured=True,
    family=_family,
    reference_competes=False,
    optional=True,
)
