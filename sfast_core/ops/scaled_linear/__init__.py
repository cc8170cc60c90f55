"""A linear layer whose weight is quantised: numbers of 8 bits with a scale, one or one for each output feature."""

from __future__ import annotations

from ..spec import Op
from .reference import scaled_linear

__all__ = ["OP", "scaled_linear"]

OP = Op(name="scaled_linear", reference=scaled_linear, optional=True)
