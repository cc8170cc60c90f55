"""Self-attention of a batch whose second half is likely its first one again."""

from __future__ import annotations

from ..needs import HOPPER
from ..spec import Impl, Op
from .reference import attention_of_halves

__all__ = ["OP", "attention_of_halves"]

OP = Op(
    name="attention_of_halves",
    reference=attention_of_halves,
    impls=(Impl("cuda", needs=HOPPER.of(extension="sfast_attention_status")),),
    optional=True,
)
