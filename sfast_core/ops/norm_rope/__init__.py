"""RMSNorm of each head, the rotary position embedding behind it, and joining two streams of tokens: each of them where
it is.
"""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import norm_rope

__all__ = ["OP", "norm_rope"]

OP = Op(
    name="norm_rope",
    reference=norm_rope,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, dims=4)),),
    optional=True,
)
