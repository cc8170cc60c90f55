"""Attention that a host wrote out is found again, so that its scores never exist in memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ..graph import called, calls, insert, insert_as, named, replace, shape, sole_user, value
from ..patterns import factor_of, sdpa, unscaled


class _Scores(NamedTuple):
    """``scale * q @ k^T + mask``; the mask, if there is one, is added to them seen as [*batch, L, S]."""

    q: Node
    k: Node
    scale: float
    mask: Node | None
    batch: tuple[int, ...]


def recover_attention(graph: Graph) -> int:
    """``softmax(scale * q @ k^T + mask) @ v`` in 3 or 4 dimensions, by baddbmm, bmm, matmul or einsum, is attention.

    The scores then never exist in memory: 2 x 10 x 4096 x 4096 of them take 671 MB in float16. The CLIP of A1111 is of
    this form: queries scaled before they are seen in heads, products of [B * H, L, D], and a mask [B, 1, L, S] added to
    the scores seen as [B, H, L, S].
    """
    recovered = 0
    for node in list(graph.nodes):
        product = _product(node)
        if product is None:
            continue
        weights, v, transposed = product
        while calls(weights, cast_like):
            weights = weights.args[0]
        if (
            transposed
            or not calls(weights, torch.softmax)
            or named(weights).dim not in (-1, value(weights).dim() - 1)
            or shape(weights)[:-2] != shape(v)[:-2]
            or not _only_used_here(weights, node)
        ):
            continue
        scores = _scores(weights.args[0])
        if scores is None:
            continue
        operands = (scores.q, v) if scores.mask is None else (scores.q, v, scores.mask)
        if _broadcasts(scores.q, scores.k, v) or any(value(x).dtype != value(node).dtype for x in operands):
            continue
        replace(node, _attend(node, scores, v))
        recovered += 1
    return recovered


def _attend(node: Node, scores: _Scores, v: Node) -> Node:
    """SDPA on 4-D views: heads [B*H, L, D] become what the mask's addition saw, or [B*H, 1, L, D] without one."""
    q, factor = unscaled(scores.q)
    batch, mask = scores.batch, scores.mask
    if len(batch) == 1:
        batch = (*batch, 1)
        if mask is not None and value(mask).dim() == 3:
            mask = insert(node, torch.reshape, mask, (shape(mask)[0], 1, *shape(mask)[1:]))
    q, k, v = (_in_batch(node, x, batch) for x in (q, scores.k, v))
    out = insert_as(
        node, value(node).reshape(*batch, *shape(node)[-2:]), sdpa, q, k, v, mask, 0.0, False, scores.scale * factor
    )
    return _in_batch(node, out, shape(node)[:-2])


def _in_batch(before: Node, x: Node, batch: tuple[int, ...]) -> Node:
    """``x`` [..., L, D] as [*batch, L, D]."""
    return x if shape(x)[:-2] == batch else insert(before, torch.reshape, x, (*batch, *shape(x)[-2:]))


def _product(node: Node) -> tuple[Node, Node, bool] | None:
    """``(a, b, b is transposed)`` where ``node`` is the batched matrix product of a and b."""
    if called(node, "bmm", "matmul", "__matmul__") and len(node.args) == 2 and not node.kwargs:
        a, b = node.args
        return (a, b, False) if isinstance(a, Node) and isinstance(b, Node) else None
    if called(node, "einsum") and len(node.args) in (2, 3):
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


def _only_used_here(node: Node, last: Node) -> bool:
    while node is not last:
        user = sole_user(node)
        if user is None:
            return False
        node = user
    return True


def _scores(node: Any, mask: Node | None = None, batch: tuple[int, ...] = ()) -> _Scores | None:
    """What ``node`` is made of, each step read by the next alone.

    ``mask`` is what is added to it, seen as [*batch, L, S].
    """
    scale = 1.0
    while isinstance(node, Node) and sole_user(node) is not None:
        factor = factor_of(node)
        if factor is not None:
            scale *= factor
        elif not calls(node, cast_like) and not (
            calls(node, torch.reshape) and shape(node.args[0])[-2:] == shape(node)[-2:]
        ):
            break
        node = node.args[0]
    if not isinstance(node, Node) or sole_user(node) is None:
        return None
    if calls(node, torch.add) and mask is None and scale == 1:
        return _masked_scores(node)
    if called(node, "baddbmm"):
        if node.kwargs.get("beta", 1) != 0 or len(node.args) != 3:
            return None
        _, a, b = node.args
        transposed, scale = False, scale * node.kwargs.get("alpha", 1)
    else:
        product = _product(node)
        if product is None:
            return None
        a, b, transposed = product
    if math.isfinite(scale):
        return _Scores(a, b if transposed else _swapped(b), scale, mask, batch or shape(a)[:-2])
    return None


def _masked_scores(addition: Node) -> _Scores | None:
    """Scores to which a mask is added that broadcasts to them and tells their keys apart."""
    for scores, mask in (addition.args, reversed(addition.args)):
        if not isinstance(scores, Node) or not isinstance(mask, Node) or shape(scores) != shape(addition):
            continue
        *batch, _, keys = shape(addition)
        if len(batch) in (1, 2) and value(mask).dim() >= 2 and shape(mask)[-1] == keys:
            found = _scores(scores, mask, tuple(batch))
            if found is not None:
                return found
    return None


def _swapped(node: Node) -> Node:
    """``node`` with its last two dimensions swapped, as a new node behind it."""
    rank = value(node).dim()
    return insert(node.next, torch.permute, node, (*range(rank - 2), rank - 1, rank - 2))


def _broadcasts(q: Node, k: Node, v: Node) -> bool:
    sizes = [shape(x) for x in (q, k, v)]
    return any(len(size) not in (3, 4) or size[:-2] != sizes[0][:-2] for size in sizes) or sizes[1][-2] != sizes[2][-2]
