"""Feed-forward layers: the gate (GEGLU) and the activation move into the epilogue of the linear layer before them."""

from __future__ import annotations

import operator

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.recorder import _getitem
from ..ops.linear_act import linear_act
from ..ops.linear_geglu import linear_geglu
from .canonicalise import gelu
from .graph import calls, drop_unused, insert_as, item, replace, sole_user, value


def _element(node: object) -> tuple[Node, int] | None:
    """``(several, i)`` where ``node`` is ``several[i]``."""
    if isinstance(node, Node) and calls(node, _getitem, item, operator.getitem):
        return node.args[0], node.args[1]
    return None


def fuse_geglu(graph: Graph) -> int:
    """``value, gate = linear(x).chunk(2, -1); value * gelu(gate)``."""
    fused = 0
    for node in list(graph.nodes):
        if not calls(node, torch.mul):
            continue
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


def _activation(linear: Node) -> tuple[Node, str] | None:
    """The activation that is the only reader of ``linear``, and its name."""
    user = sole_user(linear)
    if user is None:
        users = list(linear.users)
        if len(users) == 2:  # x * sigmoid(1.702 * x)
            return _quick_gelu(linear, users)
        return None
    if calls(user, gelu):
        return user, "gelu" if user.args[1] == "none" else "gelu_tanh"
    if calls(user, F.silu):
        return user, "silu"
    if user.target in (F.relu, torch.relu, "relu"):
        return user, "relu"
    return None


def _quick_gelu(linear: Node, users: list[Node]) -> tuple[Node, str] | None:
    for scaled, product in (users, users[::-1]):
        if not (calls(scaled, torch.mul) and calls(product, torch.mul) and 1.702 in scaled.args):
            continue
        gate = sole_user(scaled)
        if (
            gate is not None
            and gate.target in (torch.sigmoid, F.sigmoid, "sigmoid")
            and set(product.args) == {linear, gate}
            and sole_user(gate) is product
        ):
            return product, "quick_gelu"
    return None


def fuse_linear_act(graph: Graph) -> int:
    """A linear layer whose only reader is GELU (exact, tanh, quick), SiLU or ReLU."""
    fused = 0
    for node in list(graph.nodes):
        found = _activation(node) if calls(node, F.linear) else None
        if found is not None:
            last, act = found
            replace(last, insert_as(last, value(last), linear_act, *node.args, act))
            fused += 1
    drop_unused(graph)
    return fused
