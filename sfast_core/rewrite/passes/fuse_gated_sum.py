"""A residual sum with a gate that no norm reads: one pass, which rounds once."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..graph import alike, calls, calls_of, insert_as, replace, shape, sole_user, value


def fuse_gated_sum(graph: Graph) -> int:
    """``residual + gate * y``, where nobody else reads the product, as ``addcmul``.

    Runs behind all passes that know of more around it.
    """
    fused = 0
    for node in calls_of(graph, torch.add):
        for product, residual in (node.args, node.args[::-1]) if len(node.args) == 2 else ():
            if _is_product(product, node) and alike(residual, node) and product is not residual:
                replace(node, insert_as(node, value(node).contiguous(), torch.addcmul, residual, *product.args))
                fused += 1
                break
    return fused


def _is_product(node: Any, reader: Node) -> bool:
    """Whether ``node`` is a product of tokens and a gate, as large and of the same dtype as what alone reads it."""
    if not calls(node, torch.mul) or sole_user(node) is not reader or not alike(node, reader) or len(node.args) != 2:
        return False
    factors: Any = node.args
    same = all(isinstance(factor, Node) and value(factor).dtype == value(reader).dtype for factor in factors)
    return same and value(reader).is_floating_point() and any(shape(factor) == shape(reader) for factor in factors)
