"""Attention by whichever exact backend is fastest: the op behind it chooses by shape."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ..ops.attention import attention
from .graph import calls, calls_of, insert, insert_as, named, replace, shape, value
from .patterns import sdpa


def fuse_attention(graph: Graph) -> int:
    """Each ``scaled_dot_product_attention`` without dropout becomes the op ``attention``; one on 3-D tensors is one of a single head."""
    fused = 0
    for node in calls_of(graph, sdpa):
        call = named(node)
        if call.dropout != 0:
            continue
        operands = (call.query, call.key, call.value, call.mask)
        if value(node).dim() == 4:
            op = _as_op(node, value(node), *operands)
            _lay_out(node, value(op))
            replace(node, op)
        elif _is_one_head(node):
            op = _as_op(node, value(node).unsqueeze(1), *(_in_heads(node, x) for x in operands))
            replace(node, insert(node, torch.reshape, op, shape(node)))
        else:
            continue
        fused += 1
    return fused


def _as_op(node: Node, out: torch.Tensor, *operands: Any) -> Node:
    """The op on query, key, value and mask, its result like ``out`` [B, H, L, D], otherwise with the arguments of ``node``."""
    tokens_inside = out.new_empty(out.transpose(1, 2).shape).transpose(1, 2)
    return insert_as(node, tokens_inside, attention, *operands, named(node).causal, named(node).scale)


def _lay_out(node: Node, val: torch.Tensor) -> None:
    """Tell what sees ``node`` that it lies as ``val`` does: tokens seen in a row are no copy of them any more."""
    if value(node).stride() == val.stride():
        return
    node.meta["val"] = val
    for user in node.users:
        if calls(user, torch.permute, torch.reshape):
            _lay_out(user, user.target(val, user.args[1]))


def _is_one_head(node: Node) -> bool:
    """Whether query, key and value are [B, L, D] of one B, as in A1111's VAE, and the mask, if any, is [L, S] or [B, L, S]."""
    call = named(node)
    operands, mask = (call.query, call.key, call.value), call.mask
    alike = all(value(x).dim() == 3 and shape(x)[0] == shape(operands[0])[0] for x in operands)
    return alike and (mask is None or value(mask).dim() in (2, 3))


def _in_heads(before: Node, x: Any) -> Any:
    """[B, L, D] as [B, 1, L, D]; a mask [L, S], or none, as it is."""
    return x if x is None or value(x).dim() != 3 else insert(before, torch.reshape, x, (shape(x)[0], 1, *shape(x)[1:]))
