"""GEGLU: the gate of a feed-forward layer moves into the epilogue of the linear layer before it."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.functional import element
from ..ops.linear_geglu import linear_geglu
from .canonicalise import gelu
from .graph import calls, calls_of, drop_unused, insert_as, replace, sole_user, value


def _element(node: object) -> tuple[Node, int] | None:
    """``(several, i)`` where ``node`` is ``several[i]``."""
    if isinstance(node, Node) and calls(node, element, operator.getitem):
        return node.args[0], node.args[1]
    return None


def fuse_geglu(graph: Graph) -> int:
    """``value, gate = linear(x).chunk(2, -1); value * gelu(gate)``."""
    fused = 0
    for node in calls_of(graph, torch.mul):
        for left, right in (node.args, reversed(node.args)):
            first = _element(left)
            if first is None or not calls(right, gelu) or sole_user(right) is not node:
                continue
            second = _element(right.args[0])
            chunks: Node = first[0]
            if second is None or (first[1], second) != (0, (chunks, 1)) or not calls(chunks, torch.chunk):
                continue
            linear, parts, dim = chunks.args
            if parts != 2 or dim not in (-1, value(linear).dim() - 1) or not calls(linear, F.linear) or list(linear.users) != [chunks]:
                continue
            if any(len(half.users) != 1 for half in list(chunks.users)):
                continue
            replace(node, insert_as(node, value(node), linear_geglu, *linear.args, right.args[1]))
            fused += 1
            break
    drop_unused(graph)
    return fused
