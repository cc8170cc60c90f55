"""What a model joins that lies side by side already, since the layers that make it became one."""

from __future__ import annotations

import torch
from torch.fx import Graph, Node

from ...capture.functional import element
from ..graph import calls, calls_of, insert, metas, replace, shape
from ..parts import joined_part

_VIEWS = (torch.reshape, torch.permute, torch.chunk, torch.narrow, element)


def rejoin_packed(graph: Graph) -> int:
    """``cat([narrow(x, -1, 0, n), narrow(x, -1, n, m)], -1)`` is a part of x, or x (Hunyuan3D 2.1's q, k, v)."""
    rejoined = 0
    for node in calls_of(graph, torch.cat):
        part = joined_part(node)
        if part is None or not part.is_of_last:
            continue
        whole = shape(part.x) == shape(node)
        new = part.x if whole else insert(node, torch.narrow, part.x, -1, part.start, shape(node)[-1])
        replace(node, new)
        _lay_like(new)
        rejoined += 1
    return rejoined


def _lay_like(node: Node) -> None:
    """Let ``node``'s views say that they lie in what it is a part of: kernels are chosen for the strides said."""
    for user in node.users:
        if calls(user, *_VIEWS):
            user.meta["val"] = user.target(*metas(user.args))
            _lay_like(user)
