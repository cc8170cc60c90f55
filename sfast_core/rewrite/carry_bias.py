"""The bias of a linear layer that takes a residual sum goes to the pass that makes the residual: one that has been summed up for a LayerNorm.

cuBLASLt adds a bias for nothing and a residual for little, but not both (H100, fp16, us: 8192x640x2560 with a bias 39.2, with a residual 41.8,
with both 51.4, and 48.4 with the residual in a pass of its own; 8192x320x1280 14.4, 15.3, 16.9 and 19.7). What makes the residual has time to add it.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from ..capture.functional import element
from ..ops.add_layer_norm import add_layer_norm
from ..ops.linear_add import linear_add
from .fuse_linear_add import HasImpl
from .graph import calls, calls_of, is_weight, metas, sole_user

_SUM_BIAS = 6  #: its place among the arguments of add_layer_norm


def carry_bias(graph: Graph, has_impl: HasImpl) -> int:
    """``linear_add(x, weight, bias, sum)``, the only reader of an ``add_layer_norm``'s sum, lets that one add its bias.

    In a transformer that is its last feed-forward: behind all others another LayerNorm follows, which takes their sum.
    """
    carried = 0
    for node in calls_of(graph, linear_add):
        x, weight, bias, residual = node.args
        both = _summing(residual, node)
        if both is None or not is_weight(bias):
            continue
        arguments = (*both.args, *[None] * (_SUM_BIAS - len(both.args)), bias)
        if has_impl(add_layer_norm, *metas(arguments)):
            both.args, node.args = arguments, (x, weight, None, residual)
            carried += 1
    return carried


def _summing(residual: Any, reader: Node) -> Node | None:
    """The ``add_layer_norm`` that gives ``residual`` as its sum, for ``reader`` alone and for nothing but its residual."""
    if not calls(residual, element) or residual.args[1] != 0 or reader.args.count(residual) > 1 or sole_user(residual) is not reader:
        return None
    both = residual.args[0]
    return both if calls(both, add_layer_norm) and both.args[1] is not None else None
