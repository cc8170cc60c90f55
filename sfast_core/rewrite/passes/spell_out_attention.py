"""``nn.MultiheadAttention``, OpenCLIP's, as the layers that it is made of, so that the other passes see them.

Whole, it also copies the parts of its packed projection apart, a launch in each of CLIP-G's 32 blocks.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ..graph import calls, insert, insert_as, insert_item, replace, shape, value
from ..patterns import sdpa

_PLAIN = {
    "bias_k": None,
    "bias_v": None,
    "add_zero_attn": False,
    "key_padding_mask": None,
    "need_weights": False,
    "use_separate_proj_weight": False,
    "static_k": None,
    "static_v": None,
    "is_causal": False,
}
_SWAPPED = (1, 0, 2)


def spell_out_attention(graph: Graph) -> int:
    """Each plain ``F.multi_head_attention_forward`` becomes a linear layer, views, ``sdpa`` and another linear layer.

    Plain is self-attention of one packed projection, with a mask that is added or none, without dropout, and where
    nobody asks for the weights. Any other stays whole.
    """
    found = 0
    for node in graph.find_nodes(op="call_function", target=F.multi_head_attention_forward):
        bound = inspect.signature(F.multi_head_attention_forward).bind(*node.args, **node.kwargs)
        bound.apply_defaults()
        if _is_plain(bound.arguments):
            for result in list(node.users):  # the first of the two: the weights are None
                replace(result, _spelled_out(result, bound.arguments))
            found += 1
    return found


def _is_plain(arguments: Mapping[str, Any]) -> bool:
    query, mask = arguments["query"], arguments["attn_mask"]
    return (
        all(arguments[name] is wanted for name, wanted in _PLAIN.items())
        and (not arguments["training"] or arguments["dropout_p"] == 0)
        and value(query).dim() == 3
        and all(_same(query, arguments[name]) for name in ("key", "value"))
        and (mask is None or value(mask).is_floating_point())
    )


def _same(a: Node, b: Node) -> bool:
    """Whether two nodes have one value. Autocast casts query, key and value one by one."""
    return a is b or (calls(a, cast_like) and calls(b, cast_like) and a.args == b.args)


def _spelled_out(result: Node, arguments: Mapping[str, Any]) -> Node:
    """What computes ``result`` [L, B, E].

    Tokens that lie in memory as [B, L, E] are read so: else their product would be L small ones.
    """
    x, heads, mask = arguments["query"], arguments["num_heads"], arguments["attn_mask"]
    batch_first = not value(x).is_contiguous() and value(x).transpose(0, 1).is_contiguous()
    if batch_first:
        x = insert(result, torch.permute, x, _SWAPPED)
    *outer, width = shape(x)
    batch, length = outer if batch_first else reversed(outer)
    # to [3, B, H, L, D], from [B, H, L, D]
    apart, back = ((2, 0, 3, 1, 4), (0, 2, 1, 3)) if batch_first else ((2, 1, 3, 0, 4), (2, 0, 1, 3))

    projected = _linear(result, x, arguments["in_proj_weight"], arguments["in_proj_bias"])
    packed = insert(result, torch.reshape, projected, (*outer, 3, heads, width // heads))
    parts = insert(result, torch.unbind, insert(result, torch.permute, packed, apart))
    query, key, val = (insert_item(result, parts, index) for index in range(3))
    if mask is not None:
        of_heads = (1, 1) if value(mask).dim() == 2 else (batch, heads)
        mask = insert(result, torch.reshape, mask, (*of_heads, length, length))
    attended = insert_as(result, value(query).new_empty(shape(query)), sdpa, query, key, val, mask, 0.0, False, None)

    rows = insert(result, torch.reshape, insert(result, torch.permute, attended, back), (batch * length, width))
    out = _linear(result, rows, arguments["out_proj_weight"], arguments["out_proj_bias"])
    out = insert(result, torch.reshape, out, (*outer, shape(out)[-1]))
    return insert(result, torch.permute, out, _SWAPPED) if batch_first else out


def _linear(before: Node, x: Node, weight: Node, bias: Node | None) -> Node:
    return insert_as(before, value(x).new_empty((*shape(x)[:-1], shape(weight)[0])), F.linear, x, weight, bias)
