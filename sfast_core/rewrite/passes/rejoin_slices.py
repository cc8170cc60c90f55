"""What a transformer takes apart at the end of a block, text here and image there, only to join it again at the
beginning of the next.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ..graph import calls_of, named, replace, shape


class _Slice(NamedTuple):
    """Elements ``start`` to ``stop`` of ``x`` along one dimension."""

    x: Node
    start: int
    stop: int


def rejoin_slices(graph: Graph) -> int:
    """``cat([x[:, :n], x[:, n:]], 1)`` is x."""
    rejoined = 0
    for node in calls_of(graph, torch.cat):
        parts, dim = named(node).tensors, named(node).dim
        slices = [_slice(part, dim) for part in parts]
        if (x := _whole(slices, dim)) is not None:
            replace(node, x)
            rejoined += 1
    return rejoined


def _slice(node: Any, dim: Any) -> _Slice | None:
    """What ``node`` takes of a tensor: all of it but for ``dim``."""
    if not isinstance(node, Node) or node.target != "__getitem__":
        return None
    x, index = node.args
    if not isinstance(x, Node) or not isinstance(index, tuple) or not isinstance(dim, int) or not 0 <= dim < len(index):
        return None
    before, taken, behind = index[:dim], index[dim], index[dim + 1 :]
    if (
        not isinstance(taken, slice)
        or any(item != slice(None) for item in before)
        or any(item not in (slice(None), Ellipsis) for item in behind)
    ):
        return None
    start, stop, step = taken.indices(shape(x)[dim])
    return _Slice(x, start, stop) if step == 1 else None


def _whole(slices: list[_Slice | None], dim: Any) -> Node | None:
    """The tensor that the slices make up, one behind another."""
    first, end = slices[0], 0
    for part in slices:
        if first is None or part is None or part.x is not first.x or part.start != end:
            return None
        end = part.stop
    return first.x if first is not None and end == shape(first.x)[dim] else None
