"""The gated residual, the LayerNorm and the modulation of a diffusion transformer's block (adaLN), in one pass over the
tokens.
"""

from __future__ import annotations

from ..needs import FLOATS, Needs
from ..spec import Impl, Op
from .reference import ada_layer_norm

__all__ = ["OP", "ada_layer_norm"]

OP = Op(
    name="ada_layer_norm",
    reference=ada_layer_norm,
    impls=(Impl("triton", needs=Needs(triton=True, dtypes=FLOATS, dims=3)),),
    optional=True,
)
