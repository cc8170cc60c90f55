"""GroupNorm as a scale and a shift of each channel, for who applies them where it reads the image anyway."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import group_norm_affine

__all__ = ["OP", "group_norm_affine"]

OP = Op(
    name="group_norm_affine",
    reference=group_norm_affine,
    impls=(Impl("triton", needs=Needs(dtypes=FLOATS, dims=4, triton=True)),),
    optional=True,
)
