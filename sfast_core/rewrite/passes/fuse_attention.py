"""Attention by whichever exact backend is fastest: the op behind it chooses by shape."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from ...ops.attention import attention
from ..graph import calls, calls_of, given, insert, insert_as, named, replace, shape, value
from ..patterns import sdpa, unscaled
from ..repeats import repeated_along


def fuse_attention(graph: Graph) -> int:
    """Each ``scaled_dot_product_attention`` without dropout becomes ``attention``, of one head if it is 3-D."""
    fused = 0
    for node in calls_of(graph, sdpa):
        call = named(node)
        if call.dropout != 0:
            continue
        if call.mask is not None:
            _lay_in_rows(call.mask)
        _simplify(node)
        call = named(node)
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


def _simplify(node: Node) -> None:
    """Repeated keys and values aren't, and a number that queries or keys are multiplied with is the scores'."""
    call = named(node)
    if value(node).dim() == 4:
        key, values = _shared(call.key), _shared(call.value)
        if key is not None and values is not None and shape(key) == (*shape(values)[:-1], shape(key)[-1]):
            node.args = given(node, key=key, value=values)
    for name in ("query", "key"):
        plain, factor = unscaled(getattr(named(node), name))
        if factor != 1.0:
            scale = named(node).scale
            node.args = given(
                node, **{name: plain}, scale=(1 / math.sqrt(shape(plain)[-1]) if scale is None else scale) * factor
            )


def _shared(heads: Node) -> Node | None:
    """[B, H, S, D] of which each head is one after another of these, [B, H', S, D], as often as the others, perhaps
    repeated before the heads got this place.
    """
    turned = calls(heads, torch.permute)
    repeated = repeated_along(heads.args[0] if turned else heads)
    if repeated is None or value(repeated[0]).dim() != 4:
        return None
    x, _, dim = repeated
    order: Any = named(heads).dims if turned else (0, 1, 2, 3)
    if order[1] % 4 != dim:
        return None
    return insert(heads, torch.permute, x, order) if turned else x


def in_rows(mask: torch.Tensor) -> torch.Tensor:
    """A mask [..., S] whose keys lie side by side."""
    return mask.contiguous()


def _lay_in_rows(mask: Node) -> None:
    """Have all that read a mask whose keys don't lie side by side, such as T5's bias by position, read one copy of it:
    kernels that take it as it is are slower, and those that can't would copy it in each layer.
    """
    if value(mask).dim() and shape(mask)[-1] > 1 and value(mask).stride(-1) != 1:
        copy = insert_as(mask.next, value(mask).contiguous(), in_rows, mask)
        mask.replace_all_uses_with(copy, delete_user_cb=lambda user: user is not copy)


def _as_op(node: Node, out: torch.Tensor, *operands: Any) -> Node:
    """The op on these operands, its result like ``out`` [B, H, L, D], with ``node``'s other arguments."""
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
    """Whether query, key and value are [B, L, D] of one B (A1111's VAE), and the mask is [L, S] or [B, L, S]."""
    call = named(node)
    operands, mask = (call.query, call.key, call.value), call.mask
    alike = all(value(x).dim() == 3 and shape(x)[0] == shape(operands[0])[0] for x in operands)
    return alike and (mask is None or value(mask).dim() in (2, 3))


def _in_heads(before: Node, x: Any) -> Any:
    """[B, L, D] as [B, 1, L, D]; a mask [L, S], or none, as it is."""
    return x if x is None or value(x).dim() != 3 else insert(before, torch.reshape, x, (shape(x)[0], 1, *shape(x)[1:]))
