"""What a transformer takes apart at the end of a block (text, image), to join it again in the next."""

from __future__ import annotations

import torch
from torch.fx import Graph

from ..graph import calls_of, replace, shape
from ..parts import joined_part


def rejoin_slices(graph: Graph) -> int:
    """``cat([x[:, :n], x[:, n:]], 1)`` is x."""
    rejoined = 0
    for node in calls_of(graph, torch.cat):
        part = joined_part(node)
        if part is not None and (part.start, part.stop) == (0, shape(part.x)[part.dim]):
            replace(node, part.x)
            rejoined += 1
    return rejoined
