"""Queries, keys and values of one token sequence in one product."""

from __future__ import annotations

from torch.fx import Graph

from .graph import value
from .pack_linears import MayLay, from_input, pack


def pack_qkv(graph: Graph, may_pack: MayLay) -> int:
    """Queries, keys and values of self-attention, and whatever else reads one token sequence."""
    return pack(graph, may_pack, lambda x: value(x).dim() >= 3 and not from_input(x))
