"""GroupNorm with what stands next to it: ``silu(group_norm(x + channel[:, :, None, None]))`` becomes one op.

Eager reads and writes the feature map once for the sum, three times for the norm and twice for SiLU; fused it is read twice and
written once.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.group_norm_act import group_norm_act
from .graph import calls, calls_of, drop_unused, insert, insert_as, replace, shape, sole_user, value


def channel_vector(x: Node, other: object) -> bool:
    """Whether ``other`` is one value per (sample, channel) of the feature map ``x``: [N or 1, C, 1, 1, ...]."""
    if not isinstance(other, Node) or value(other).dim() != value(x).dim() or value(x).dim() < 3:
        return False
    sizes, full = shape(other), shape(x)
    return (
        sizes[1] == full[1] and sizes[0] in (1, full[0]) and all(size == 1 for size in sizes[2:]) and value(other).dtype == value(x).dtype
    )


def split_channel_add(node: Node) -> tuple[Node, Node] | None:
    """``(x, channel)`` where ``node`` is their sum and x has the sum's shape."""
    if not calls(node, torch.add):
        return None
    for x, other in (node.args, reversed(node.args)):
        if isinstance(x, Node) and shape(x) == shape(node) and value(x).dtype == value(node).dtype and channel_vector(x, other):
            return x, other
    return None


def fuse_group_norm_act(graph: Graph) -> int:
    """Fuse GroupNorm with a per-channel sum before it and SiLU behind it."""
    fused = 0
    for node in calls_of(graph, F.group_norm):
        if value(node).dim() != 4:
            continue
        x, groups, weight, bias, eps = node.args
        channel = None
        parts = split_channel_add(x) if sole_user(x) is node else None
        if parts is not None:
            x, vector = parts
            channel = insert(node, torch.reshape, vector, shape(vector)[:2])
        user = sole_user(node)
        last = user if user is not None and calls(user, F.silu) else node
        new = insert_as(last, value(last), group_norm_act, x, groups, weight, bias, eps, "silu" if last is user else "none", channel)
        replace(last, new)
        fused += 1
    drop_unused(graph)
    return fused
