"""What does nothing goes, what is computed twice is computed once, what depends on nothing is computed now."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..constants import known, values
from ..graph import calls, calls_of, insert, insert_as, named, placeholder, replace, shape, value
from ..patterns import SIGMOIDS

_LARGEST_CONSTANT = 64 * 2**20


def simplify_shapes(graph: Graph) -> int:
    """Join chains of reshapes and of permutations, and drop those that change nothing."""
    changed = 0
    for node in calls_of(graph, torch.reshape, torch.permute):
        x = node.args[0]
        if calls(x, node.target):
            dims = (
                named(node).shape
                if node.target is torch.reshape
                else tuple(named(x).dims[dim] for dim in named(node).dims)
            )
            new = insert(node, node.target, x.args[0], dims)
            replace(node, new)
            node, x, changed = new, x.args[0], changed + 1
        if node.target is torch.reshape:
            same = shape(node) == shape(x)
        else:
            same = all(dim % value(x).dim() == place for place, dim in enumerate(named(node).dims))
        if same:
            replace(node, x)
            changed += 1
    return changed


def drop_units(graph: Graph) -> int:
    """``x * 1`` and ``x / 1`` are x: models scale their residuals by factors that are 1."""
    dropped = 0
    for node in calls_of(graph, torch.mul, torch.div):
        if type(node.args[1]) in (int, float) and node.args[1] == 1 and value(node).dtype == value(node.args[0]).dtype:
            replace(node, node.args[0])
            dropped += 1
    return dropped


def recover_silu(graph: Graph) -> int:
    """``x * sigmoid(x)`` is SiLU."""
    changed = 0
    for node in calls_of(graph, torch.mul):
        for x, gate in (node.args, reversed(node.args)):
            if isinstance(gate, Node) and gate.target in SIGMOIDS and gate.args[0] is x:
                replace(node, insert_as(node, value(node), F.silu, x))
                changed += 1
                break
    return changed


def _key(value_: Any) -> Hashable:
    if isinstance(value_, Node):
        return ("node", id(value_))
    if isinstance(value_, (tuple, list)):
        return tuple(_key(item) for item in value_)
    if isinstance(value_, dict):
        return tuple((name, _key(item)) for name, item in value_.items())
    if isinstance(value_, slice):
        return ("slice", _key(value_.start), _key(value_.stop), _key(value_.step))
    return (type(value_), value_)


def share_common(graph: Graph) -> int:
    """Compute each distinct call once: a recorded graph has no side effects and draws no random numbers."""
    seen: dict[Hashable, Node] = {}
    shared = 0
    for node in list(graph.nodes):
        if node.op not in ("call_function", "call_method"):
            continue
        first = seen.setdefault((node.op, node.target, _key(node.args), _key(node.kwargs)), node)
        if first is not node:
            replace(node, first)
            shared += 1
    return shared


def fold_constants(graph: Graph) -> int:
    """Compute now what depends on neither inputs nor weights (tables, grids of positions), at most 64 MB a tensor.

    Each becomes a placeholder with the tensor as ``meta["constant"]``, and so does what passes make of such. What is
    larger is computed at each call, from constants.
    """
    wanted = _wanted(known(graph))
    tensors = values(graph, wanted)
    last = next((node for node in reversed(graph.nodes) if node.op == "placeholder"), None)
    for node, tensor in tensors.items():
        with graph.inserting_before(next(iter(graph.nodes))) if last is None else graph.inserting_after(last):
            last = placeholder(graph, "constant", constant=tensor, val=value(node), device=tensor.device)
        replace(node, last)
    return len(wanted)


def _wanted(found: Collection[Node]) -> list[Node]:
    """The nodes that the rest of the graph needs, in order: tensors that may be kept and that staying calls read."""
    wanted: list[Node] = []
    stays: set[Node] = set()
    for node in reversed(list(found)):
        if node.op == "placeholder" or not any(user not in found or user in stays for user in node.users):
            continue
        tensor = node.meta.get("val")
        if isinstance(tensor, torch.Tensor) and tensor.nbytes <= _LARGEST_CONSTANT:
            wanted.append(node)
        else:  # several results are no placeholder
            stays.add(node)
    return wanted[::-1]
