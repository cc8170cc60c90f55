"""Residual sums with a gate that no norm reads, and tokens times the sigmoid of a gate or a gate for each part of them:
one pass, one rounding.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ...ops.gated_sum import gated_sum
from ..graph import alike, calls, calls_of, insert_as, metas, replace, shape, sole_user, value
from ..patterns import SIGMOIDS, HasImpl
from ..repeats import by_part, token_rows


def fuse_gated_sum(graph: Graph, has_impl: HasImpl) -> int:
    """``residual + gate * y``, where nobody else reads the product, ``y * sigmoid(gate)``, where nobody else reads the
    sigmoid, and ``y`` times rows that are repeated for tokens, as ``gated_sum``; without an impl the first is
    ``addcmul``.

    Runs behind all passes that know of more around it.
    """
    fused = 0
    for node in calls_of(graph, torch.add, torch.addcmul, torch.mul):
        terms = _terms(node)
        calls_of_op = _gated(node) if terms is None else _summed(node, *terms)
        arguments: Any = next((args for args in calls_of_op if has_impl(gated_sum, *metas(args))), None)
        if arguments is not None:
            replace(node, insert_as(node, value(node).contiguous(), gated_sum, *arguments))
        elif terms is not None and calls(node, torch.add):
            replace(node, insert_as(node, value(node).contiguous(), torch.addcmul, *terms))
        else:
            continue
        fused += 1
    return fused


def _terms(node: Node) -> tuple[Any, Any, Any] | None:
    """The residual and the two factors of what is added to it."""
    if calls(node, torch.addcmul):
        return node.args if alike(node.args[0], node) else None
    if not calls(node, torch.add) or len(node.args) != 2:
        return None
    for product, residual in (node.args, node.args[::-1]):
        if _is_product(product, node) and alike(residual, node) and product is not residual:
            return residual, *product.args
    return None


def _summed(node: Node, residual: Any, *factors: Any) -> Iterator[tuple[Any, ...]]:
    """The arguments of ``gated_sum`` in the place of a sum: of two factors either may be the gate."""
    for y, gate in sorted((factors[::-1], factors), key=lambda pair: token_rows(pair[1]) is None):
        if alike(y, node):
            (rows,), part = by_part(gate)
            yield y, rows, residual, "none", part


def _gated(node: Node) -> Iterator[tuple[Any, ...]]:
    """The arguments of ``gated_sum`` in the place of a product with a sigmoid, or with rows of parts."""
    for y, gate in (node.args, node.args[::-1]) if calls(node, torch.mul) and len(node.args) == 2 else ():
        if isinstance(gate, Node) and gate.target in SIGMOIDS and sole_user(gate) is node and alike(y, node):
            yield y, gate.args[0], None, "sigmoid"
        elif alike(y, node) and token_rows(gate) is not None:
            (rows,), part = by_part(gate)
            yield y, rows, None, "none", part


def _is_product(node: Any, reader: Node) -> bool:
    """Whether ``node`` is a product of tokens and a gate, as large and of the same dtype as what alone reads it."""
    if not calls(node, torch.mul) or sole_user(node) is not reader or not alike(node, reader) or len(node.args) != 2:
        return False
    factors: Any = node.args
    same = all(isinstance(factor, Node) and value(factor).dtype == value(reader).dtype for factor in factors)
    return same and value(reader).is_floating_point() and any(shape(factor) == shape(reader) for factor in factors)
