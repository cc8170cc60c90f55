"""RMSNorm of each head and the rotary position embedding behind it, of one stream of tokens or of two joined."""

from __future__ import annotations

from ..spec import Impl, Op
from .reference import norm_rope

__all__ = ["OP", "norm_rope"]

OP = Op(name="norm_rope", reference=norm_rope, impls=(Impl("triton", ".triton_impl", __package__),), optional=True)
