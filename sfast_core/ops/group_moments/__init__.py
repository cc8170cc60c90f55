"""Mean and variance of an image's groups of channels, where GroupNorm's are of more than this one has."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import group_moments

__all__ = ["OP", "group_moments"]

OP = Op(
    name="group_moments",
    reference=group_moments,
    impls=(Impl("triton", needs=Needs(dtypes=FLOATS, dims=4, triton=True)),),
)
