"""Every residual block projects the timestep embedding: one product computes all projections."""

from __future__ import annotations

from torch.fx import Graph

from .graph import value
from .pack_linears import MayLay, pack


def pack_embedding(graph: Graph, may_pack: MayLay) -> int:
    """All projections of a vector per sample: the timestep embedding."""
    return pack(graph, may_pack, lambda x: value(x).dim() == 2)
