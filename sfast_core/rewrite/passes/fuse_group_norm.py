"""GroupNorm with what stands next to it: ``silu(group_norm(x + channel[:, :, None, None]))`` becomes one op.

Eager reads and writes the feature map once for the sum, three times for the norm and twice for SiLU; fused it is read
twice and written once.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.group_norm_act import group_norm_act
from ..graph import calls, calls_of, given, insert, insert_as, named, replace, replace_reshaped, shape, sole_user, value
from ..patterns import split_channel_add


def _activated(node: Node) -> Node | None:
    """SiLU behind a node, with views of what nobody else reads in between."""
    user = sole_user(node)
    while calls(user, torch.reshape, torch.permute):
        user = sole_user(user)
    return user if calls(user, F.silu) else None


def _image(x: Node) -> Node | None:
    """The image that is normed: itself, or before its pixels were put in a row, as diffusers' attention has them."""
    if value(x).dim() == 4:
        return x
    image: Any = x.args[0] if calls(x, torch.reshape) else None
    if image is not None and value(image).dim() == 4 and shape(image)[:2] == shape(x)[:2] and value(x).dim() == 3:
        return image
    return None


def fuse_group_norm_act(graph: Graph) -> int:
    """Fuse GroupNorm with a per-channel sum before it and SiLU behind it."""
    fused = 0
    for node in calls_of(graph, F.group_norm):
        call = named(node)
        x, channel = _image(call.input), None
        if x is None:
            continue
        parts = split_channel_add(x) if sole_user(x) is node else None
        if parts is not None:
            x, vector = parts
            channel = insert(node, torch.reshape, vector, shape(vector)[:2])
        act = _activated(node)
        new = insert_as(
            node, value(x), group_norm_act, *given(node, input=x), "none" if act is None else "silu", channel
        )
        if act is not None:
            replace(act, act.args[0])
        replace_reshaped(node, new, node)
        fused += 1
    return fused
