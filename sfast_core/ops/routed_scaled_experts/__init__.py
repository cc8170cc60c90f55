"""A mixture of experts' feed-forward layers whose weights are quantised: numbers of 8 bits with a scale, one of an
expert or one for each output feature.
"""

from __future__ import annotations

from ..needs import Needs
from ..spec import Impl, Op
from .reference import routed_scaled_experts

__all__ = ["OP", "routed_scaled_experts"]

OP = Op(
    name="routed_scaled_experts",
    reference=routed_scaled_experts,
    impls=(Impl("triton", needs=Needs(triton=True, dims=2)),),
    optional=True,
)
