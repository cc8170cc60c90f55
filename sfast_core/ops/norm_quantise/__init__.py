"""A transformer block's norm, with the residual sum in front of it and the modulation behind it, quantised for the
products that read it.
"""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import norm_quantise

__all__ = ["OP", "norm_quantise"]

OP = Op(
    name="norm_quantise",
    reference=norm_quantise,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS)),),
    optional=True,
)
