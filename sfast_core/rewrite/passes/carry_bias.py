"""The bias of a linear layer that takes a residual sum goes to the pass that makes the residual: one that has been
summed up for a LayerNorm.

cuBLASLt adds a bias for nothing and a residual for little, but not both (H100, fp16, us: 8192x640x2560 with a bias
39.2, with a residual 41.8, with both 51.4, and 48.4 with the residual in a pass of its own; 8192x320x1280 14.4, 15.3,
16.9 and 19.7). What makes the residual has time to add it.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from ...capture.functional import element
from ...ops.add_layer_norm import add_layer_norm
from ...ops.linear import linear
from ..graph import calls, calls_of, given, is_weight, metas, named, sole_user
from ..patterns import HasImpl


def carry_bias(graph: Graph, has_impl: HasImpl) -> int:
    """A linear layer to which an ``add_layer_norm``'s sum is added, which nobody else reads, lets that one add its
    bias.

    In a transformer that is its last feed-forward: behind all others another LayerNorm follows, which takes their sum.
    """
    carried = 0
    for node in calls_of(graph, linear):
        call = named(node)
        both = _summing(call.residual, node)
        if both is None or not is_weight(call.bias) or named(both).sum_bias is not None:
            continue
        arguments = given(both, sum_bias=call.bias)
        if has_impl(add_layer_norm, *metas(arguments)):
            both.args, node.args = arguments, given(node, bias=None)
            carried += 1
    return carried


def _summing(residual: Any, reader: Node) -> Node | None:
    """The ``add_layer_norm`` that gives ``residual`` as its sum,
    for ``reader`` alone and for nothing but its residual.
    """
    if (
        not calls(residual, element)
        or named(residual).index != 0
        or reader.args.count(residual) > 1
        or sole_user(residual) is not reader
    ):
        return None
    both = named(residual).results
    return both if calls(both, add_layer_norm) and named(both).residual is not None else None
