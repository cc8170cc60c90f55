"""Attention that a host wrote out is found again, so that its scores never exist in memory."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from ..capture.functional import cast_like
from ..capture.recorder import function_name
from .canonicalise import sdpa
from .graph import calls, drop_unused, insert, insert_as, replace, shape, sole_user, value


def recover_attention(graph: Graph) -> int:
    """``softmax(scale * q @ k^T) @ v`` on 3-D or 4-D tensors, written with baddbmm, bmm, matmul or einsum, is attention.

    The scores then never exist in memory: 2 x 10 x 4096 x 4096 of them take 671 MB in float16.
    """
    recovered = 0
    for node in list(graph.nodes):
        product = _product(node)
        if product is None:
            continue
        weights, v, transposed = product
        weights = _through_casts(weights)
        if (
            transposed
            or not calls(weights, torch.softmax)
            or weights.args[1] not in (-1, value(weights).dim() - 1)
            or not _only_used_here(weights, node)
        ):
            continue
        scores = _scores(weights.args[0])
        if scores is None:
            continue
        q, k, scale = scores
        if _broadcasts(q, k, v) or value(q).dtype != value(node).dtype or value(v).dtype != value(node).dtype:
            continue
        replace(node, _attend(node, q, k, v, scale))
        recovered += 1
    drop_unused(graph)
    return recovered


def _attend(node: Node, q: Node, k: Node, v: Node, scale: float) -> Node:
    """SDPA on 4-D views: a batch of heads [B*H, L, D] becomes [B*H, 1, L, D]."""
    if value(q).dim() == 4:
        return insert_as(node, value(node), sdpa, q, k, v, None, 0.0, False, scale)
    lifted = [insert(node, torch.reshape, x, (shape(x)[0], 1, *shape(x)[1:])) for x in (q, k, v)]
    out = insert_as(node, value(node).unsqueeze(1), sdpa, *lifted, None, 0.0, False, scale)
    return insert(node, torch.reshape, out, shape(node))


def _product(node: Node) -> tuple[Node, Node, bool] | None:
    """``(a, b, b is transposed)`` where ``node`` is the batched matrix product of a and b."""
    name = function_name(node.target) if node.op in ("call_function", "call_method") else ""
    if name in ("bmm", "matmul", "__matmul__") and len(node.args) == 2 and not node.kwargs:
        a, b = node.args
        return (a, b, False) if isinstance(a, Node) and isinstance(b, Node) else None
    if name == "einsum" and len(node.args) in (2, 3):
        operands = node.args[1] if isinstance(node.args[1], (tuple, list)) else node.args[1:]
        equation = str(node.args[0]).replace(" ", "")
        if len(operands) == 2 and "->" in equation and "..." not in equation:
            return _einsum_product(equation, *operands)
    return None


def _einsum_product(equation: str, a: Node, b: Node) -> tuple[Node, Node, bool] | None:
    """'bid,bjd->bij' is a product with b transposed, 'bij,bjd->bid' a plain one, with any batch letters."""
    inputs, out = equation.split("->")
    left, right = inputs.split(",")
    if len(left) not in (3, 4) or not len(left) == len(right) == len(out):
        return None
    batch, i, x = left[:-2], left[-2], left[-1]
    if right[:-2] != batch or out[:-2] != batch:
        return None
    if right[-1] == x and out[-2:] == i + right[-2]:
        return a, b, True
    if right[-2] == x and out[-2:] == i + right[-1]:
        return a, b, False
    return None


def _through_casts(node: Node) -> Node:
    while calls(node, cast_like):
        node = node.args[0]
    return node


def _only_used_here(node: Node, last: Node) -> bool:
    while node is not last:
        user = sole_user(node)
        if user is None:
            return False
        node = user
    return True


def _scores(node: Any) -> tuple[Node, Node, float] | None:
    """``(q, k, scale)`` where ``node`` is ``scale * q @ k^T``, each step read by the next alone."""
    scale = 1.0
    while isinstance(node, Node) and sole_user(node) is not None:
        if calls(node, torch.mul) and isinstance(node.args[1], (int, float)):
            node, scale = node.args[0], scale * node.args[1]
        elif calls(node, torch.div) and isinstance(node.args[1], (int, float)):
            node, scale = node.args[0], scale / node.args[1]
        elif calls(node, cast_like):
            node = node.args[0]
        else:
            break
    if not isinstance(node, Node) or sole_user(node) is None:
        return None
    if function_name(node.target) == "baddbmm":
        if node.kwargs.get("beta", 1) != 0 or len(node.args) != 3:
            return None
        a, b, transposed, scale = node.args[1], node.args[2], False, scale * node.kwargs.get("alpha", 1)
    else:
        product = _product(node)
        if product is None:
            return None
        a, b, transposed = product
    return (a, b if transposed else _swapped(b), scale) if math.isfinite(scale) else None


def _swapped(node: Node) -> Node:
    """``node`` with its last two dimensions swapped, as a new node behind it."""
    rank = value(node).dim()
    return insert(node.next, torch.permute, node, (*range(rank - 2), rank - 1, rank - 2))


def _broadcasts(q: Node, k: Node, v: Node) -> bool:
    sizes = [shape(x) for x in (q, k, v)]
    return any(len(size) not in (3, 4) or size[:-2] != sizes[0][:-2] for size in sizes) or sizes[1][-2] != sizes[2][-2]
