"""A bias goes to a pass that reads what it is added to, or makes it, where adding it takes a pass of its own.

Of a linear layer that takes a residual sum, to the pass that makes the residual: one that has been summed up for a
LayerNorm. Of a convolution of a video, to the norm that reads its result.

cuBLASLt adds a bias for nothing and a residual for little, but not both (H100, 8192x640x2560: 39.2, 41.8 and 51.4 us;
docs/notes/0015-bias-residual-and-few-rows.md). What makes the residual has time to add it.
cuDNN's convolution of a video adds none: PyTorch, and we, read and write the whole result once more for it.
"""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, Node

from ...capture.functional import element
from ...ops.add_layer_norm import add_layer_norm
from ...ops.conv2d_act import conv2d_act
from ...ops.linear import linear
from ...ops.norm_pad_video import norm_pad_video
from ..graph import calls, calls_of, given, is_weight, metas, named, sole_user
from ..patterns import HasImpl


def carry_bias(graph: Graph, has_impl: HasImpl) -> int:
    """A linear layer to which an ``add_layer_norm``'s sum is added, which nobody else reads, lets that one add its
    bias; a convolution whose result only a ``norm_pad_video`` reads likewise.

    In a transformer that is its last feed-forward: behind all others another LayerNorm follows, which takes their sum.
    In an autoencoder of videos it is the first convolution of each residual block.
    """
    carried = sum([_to_norm(node, has_impl) for node in calls_of(graph, conv2d_act)])
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
    """The ``add_layer_norm`` that gives ``residual`` as its sum, for ``reader``'s residual alone."""
    if (
        not calls(residual, element)
        or named(residual).index != 0
        or reader.args.count(residual) > 1
        or sole_user(residual) is not reader
    ):
        return None
    both = named(residual).results
    return both if calls(both, add_layer_norm) and named(both).residual is not None else None


def _to_norm(conv: Node, has_impl: HasImpl) -> bool:
    call, norm = named(conv), sole_user(conv)
    if (
        not calls(norm, norm_pad_video)
        or named(norm).bias is not None
        or norm.args.count(conv) > 1
        or named(norm).x is not conv
        or not is_weight(call.bias)
        or call.residual is not None
        or call.channel_add is not None
        or call.act != "none"
    ):
        return False
    arguments = given(norm, bias=call.bias)
    if not has_impl(norm_pad_video, *metas(arguments)):
        return False
    norm.args, conv.args = arguments, given(conv, bias=None)
    return True
