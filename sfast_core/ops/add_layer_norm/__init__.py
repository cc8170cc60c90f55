"""The residual addition and the LayerNorm behind it, in one pass over the tokens."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import add_layer_norm

__all__ = ["OP", "add_layer_norm"]

OP = Op(
    name="add_layer_norm",
    reference=add_layer_norm,
    impls=(
        Impl("cuda", needs=Needs((7, 5), dtypes=FLOATS, alike="weight bias", extension="sfast_device_status")),
        Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, typed="x weight bias")),
    ),
)
