"""What a model joins that lies side by side already, since the layers that make it became one."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import element
from ..graph import calls, calls_of, insert, joins_along_last, metas, named, replace, shape, value

_VIEWS = (torch.reshape, torch.permute, torch.chunk, torch.narrow, element)


def rejoin_packed(graph: Graph) -> int:
    """``cat([narrow(x, -1, 0, n), narrow(x, -1, n, m)], -1)`` is a part of x, or x: Hunyuan3D 2.1's queries, keys and
    values, which it sees in heads together.
    """
    rejoined = 0
    for node in calls_of(graph, torch.cat):
        parts: Any = named(node).tensors
        if not joins_along_last(node) or (first := _side_by_side(parts)) is None:
            continue
        call, width = named(first), shape(node)[-1]
        whole = shape(call.input)[-1] == width
        new = call.input if whole else insert(node, torch.narrow, call.input, -1, call.start, width)
        replace(node, new)
        _lay_like(new)
        rejoined += 1
    return rejoined


def _side_by_side(parts: Any) -> Node | None:
    """The first of parts of one tensor's last dimension, one behind another."""
    end = None
    for part in parts:
        if not calls(part, torch.narrow):
            return None
        call, first = named(part), named(parts[0])
        if call.dim % value(part).dim() != value(part).dim() - 1 or call.input is not first.input:
            return None
        if end is not None and call.start != end:
            return None
        end = call.start + call.length
    return parts[0] if len(parts) > 1 else None


def _lay_like(node: Node) -> None:
    """Let the views of ``node`` say that they lie in what it is a part of: kernels are chosen for the strides that are
    said.
    """
    for user in node.users:
        if calls(user, *_VIEWS):
            user.meta["val"] = user.target(*metas(user.args))
            _lay_like(user)
