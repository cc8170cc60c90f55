"""The residual sum and the LayerNorm behind it in one pass: the sum is written once and not read again for the norm.

The bias of a linear layer that is added to the residual goes along: the pass has time to read it, and a product without
one runs faster (docs/notes/0047-what-a-norm-takes-along.md).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.add_layer_norm import add_layer_norm
from ..graph import alike, calls, calls_of, given, insert_as, insert_item, metas, named, replace, respell, value
from ..patterns import HasImpl, has_own_bias


def fuse_add_layer_norm(graph: Graph, has_impl: HasImpl) -> int:
    """Fuse LayerNorm over the last dimension with the sum that it reads; the sum stays available to the residual
    stream.

    Without an impl each linear layer keeps its bias: one more sum would be a pass of its own.
    """
    fused = 0
    for node in calls_of(graph, F.layer_norm):
        call = named(node)
        if len(tuple(call.normalized_shape)) != 1:
            continue
        x, weight, bias, eps = call.input, call.weight, call.bias, call.eps
        if _is_residual_sum(x) and all(_is_placeholder(arg) for arg in (weight, bias)):
            both = _fuse_sum(x, weight, bias, eps, has_impl)
            total = insert_item(x, both, 0)
            replace(node, insert_item(x, both, 1))
            replace(x, total)
        else:
            both = insert_as(node, _results(x), add_layer_norm, x, None, weight, bias, eps)
            replace(node, insert_item(node, both, 1))
        fused += 1
    return fused


def _is_residual_sum(node: Node) -> bool:
    """A sum of two tensors of one shape and dtype."""
    return calls(node, torch.add) and all(alike(arg, node) for arg in node.args)


def _fuse_sum(total: Node, weight: Node | None, bias: Node | None, eps: float, has_impl: HasImpl) -> Node:
    """The fused call in front of the sum ``total``."""
    for linear, other in (total.args, total.args[::-1]):
        if linear is other or not has_own_bias(linear):
            continue
        arguments = (linear, other, weight, bias, eps, named(linear).bias)
        if has_impl(add_layer_norm, *metas(arguments)):
            respell(linear, value(linear), F.linear, *given(linear, bias=None))
            return insert_as(total, _results(total), add_layer_norm, *arguments)
    return insert_as(total, _results(total), add_layer_norm, *total.args, weight, bias, eps)


def _results(x: Node) -> tuple[torch.Tensor, torch.Tensor]:
    return value(x), value(x).contiguous()


def _is_placeholder(arg: object) -> bool:
    """Placeholders stand before all calls, so the fused call may move up to where the sum is."""
    return arg is None or (isinstance(arg, Node) and arg.op == "placeholder")
