"""The gated residual, the RMSNorm and the modulation of a transformer's block, in one pass over the tokens."""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import ada_rms_norm

__all__ = ["OP", "ada_rms_norm"]

OP = Op(
    name="ada_rms_norm",
    reference=ada_rms_norm,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS)),),
    optional=True,
)
