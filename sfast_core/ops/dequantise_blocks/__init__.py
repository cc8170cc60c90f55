"""A weight out of GGUF's blocks: numbers of few bits with scales beside them, to 16 or 32 bits."""

from __future__ import annotations

from ..needs import Needs
from ..spec import Impl, Op
from .reference import dequantise_blocks

__all__ = ["OP", "dequantise_blocks"]

OP = Op(name="dequantise_blocks", reference=dequantise_blocks, impls=(Impl("triton", needs=Needs(triton=True)),))
