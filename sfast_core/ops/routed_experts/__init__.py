"""A mixture of experts' feed-forward layers: each token goes through a few, chosen by its own values."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import routed_experts

__all__ = ["OP", "routed_experts"]

OP = Op(
    name="routed_experts",
    reference=routed_experts,
    impls=(
        Impl(
            "triton",
            needs=Needs(triton=True, dtypes=FLOATS, alike="first first_bias second second_bias gate", dims=2),
        ),
    ),
    optional=True,
)
