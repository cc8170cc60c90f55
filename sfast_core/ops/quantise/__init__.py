"""What a product of 8 bits reads: the input rotated, scaled and rounded to 8 bits."""

from __future__ import annotations

from ..spec import Op
from .reference import quantise

__all__ = ["OP", "quantise"]

OP = Op(name="quantise", reference=quantise, optional=True)
