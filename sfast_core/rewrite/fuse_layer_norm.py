"""The residual sum and the LayerNorm behind it in one pass: the sum is written once and not read again for the norm."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.add_layer_norm import add_layer_norm
from .graph import calls, drop_unused, insert_as, insert_item, replace, shape, value


def _is_residual_sum(node: Node) -> bool:
    """A sum of two tensors of one shape and dtype."""
    return calls(node, torch.add) and all(
        isinstance(arg, Node) and shape(arg) == shape(node) and value(arg).dtype == value(node).dtype for arg in node.args
    )


def fuse_add_layer_norm(graph: Graph) -> int:
    """Fuse LayerNorm over the last dimension with the sum that it reads; the sum stays available to the residual stream."""
    fused = 0
    for node in list(graph.nodes):
        if not calls(node, F.layer_norm) or len(tuple(node.args[1])) != 1:
            continue
        x, _, weight, bias, eps = node.args
        if _is_residual_sum(x) and all(_is_placeholder(arg) for arg in (weight, bias)):
            both = insert_as(x, _results(x), add_layer_norm, x.args[0], x.args[1], weight, bias, eps)
            total = insert_item(x, both, 0)
            replace(node, insert_item(x, both, 1))
            replace(x, total)
        else:
            both = insert_as(node, _results(x), add_layer_norm, x, None, weight, bias, eps)
            replace(node, insert_item(node, both, 1))
        fused += 1
    drop_unused(graph)
    return fused


def _results(x: Node) -> tuple[torch.Tensor, torch.Tensor]:
    return value(x), value(x).contiguous()


def _is_placeholder(arg: object) -> bool:
    """Placeholders stand before all calls, so the fused call may move up to where the sum is."""
    return arg is None or (isinstance(arg, Node) and arg.op == "placeholder")
