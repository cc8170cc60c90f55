"""What a product of 8 bits reads: the input rotated, scaled and rounded to 8 bits."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import quantise

__all__ = ["OP", "quantise"]

OP = Op(
    name="quantise",
    reference=quantise,
    impls=(
        Impl("triton_rows", needs=Needs(triton=True, dtypes=FLOATS)),
        Impl("triton_tensor", needs=Needs((8, 9), triton=True, dtypes=FLOATS)),
    ),
    optional=True,
)
