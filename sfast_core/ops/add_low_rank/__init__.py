"""A weight with LoRAs added to it, as a loader does it at each call that keeps the weight in blocks."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import add_low_rank

__all__ = ["OP", "add_low_rank"]

OP = Op(
    name="add_low_rank",
    reference=add_low_rank,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, typed="weight up")),),
)
