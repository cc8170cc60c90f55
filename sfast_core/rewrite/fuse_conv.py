"""Convolution with its epilogue: bias, a sum per channel, the residual and SiLU become part of one op."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.conv2d_act import conv2d_act
from .graph import calls, calls_of, drop_unused, insert, insert_as, named, replace, shape, sole_user, value
from .patterns import split_channel_add


def _residual(conv: Node, total: Node | None) -> Node | None:
    """The other term of ``total = conv + other``, where both have the same shape and dtype."""
    if total is None or not calls(total, torch.add):
        return None
    others = [arg for arg in total.args if arg is not conv]
    other = others[0] if len(others) == 1 else None
    if not isinstance(other, Node) or shape(other) != shape(conv) or value(other).dtype != value(conv).dtype:
        return None
    return other


def fuse_conv_act(graph: Graph) -> int:
    """Fuse each convolution with the sums and the activation that only it feeds."""
    fused = 0
    for node in calls_of(graph, F.conv2d):
        if value(node).dim() != 4 or isinstance(named(node).padding, str):
            continue
        last, channel, residual, act = node, None, None, "none"
        user = sole_user(last)
        if user is not None and (parts := split_channel_add(user)) and parts[0] is last:
            channel, last = insert(user, torch.reshape, parts[1], shape(parts[1])[:2]), user
            user = sole_user(last)
        other = _residual(last, user)
        if other is not None and user is not None:
            residual, last = other, user
            user = sole_user(last)
        if user is not None and calls(user, F.silu):
            act, last = "silu", user
        new = insert_as(last, value(last), conv2d_act, *node.args, residual, act, channel)
        replace(last, new)
        fused += 1
    drop_unused(graph)
    return fused
