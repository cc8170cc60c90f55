"""Tokens times a gate, and the residual that they are added to, in one pass."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import gated_sum

__all__ = ["OP", "gated_sum"]

OP = Op(
    name="gated_sum",
    reference=gated_sum,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, dims=3)),),
    optional=True,
)
