"""Quantising in the pass of the norm in front of it, where nobody else reads the norm: its result in 16 bits is not
written down.

By then LayerNorms have their residual sums and modulations (:mod:`fuse_ada_layer_norm`). RMSNorms get theirs here:
``rms(s) * (1 + scale)``, and ``s = residual + gate * rms(x)`` in front of it, of which each part may be missing.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like, element
from ...ops.ada_layer_norm import ada_layer_norm
from ...ops.add_layer_norm import add_layer_norm
from ...ops.norm_quantise import norm_quantise
from ...ops.quantise import quantise
from ...weights.kitchen import operators
from ..graph import (
    alike,
    calls,
    calls_of,
    insert_as,
    insert_item,
    metas,
    named,
    replace_reshaped,
    results_of,
    shape,
    value,
)
from ..patterns import HasImpl, in_other_rows
from ..repeats import by_part
from ..rms_norms import modulation_of, norm_of, sum_of


class _Norm(NamedTuple):
    """What is quantised. The names are those of :func:`norm_quantise`'s parameters."""

    last: Node  #: in front of which all that it reads is there, and behind which all are that read ``total``
    total: Node | None  #: the sum, where somebody reads it besides the norm
    node: Node  #: the norm, which reads it
    x: Node
    norm: str
    eps: float
    weight: Node | None = None
    bias: Node | None = None
    scale: Node | None = None
    shift: Node | None = None
    residual: Node | None = None
    gate: Node | None = None
    x_bias: Node | None = None
    x_weight: Node | None = None
    part: int = 1
    offset: float = 0.0


def fuse_norm_quantise(graph: Graph, has_impl: HasImpl) -> int:
    """Each norm that one :func:`quantise` alone reads, perhaps in another shape with the same rows.

    Without an impl all stays as it is.
    """
    fused = 0
    for node in calls_of(graph, quantise):
        call = named(node)
        input_scale = call.scale
        normed, alone = in_other_rows(call.x, node)
        if not alone or any(arg is not None for arg in (call.act, call.times, call.front)):
            continue
        found = _layer_norm(normed) or _rms_norm(normed)
        if found is None or (isinstance(input_scale, Node) and not input_scale < found.last):
            continue
        if found.part == 1:
            (scale, shift, gate), part = by_part(found.scale, found.shift, found.gate)
            found = found._replace(scale=scale, shift=shift, gate=gate, part=part)
        arguments = (*found[3:6], call.dtype, input_scale, call.rotate, *found[6:-2], call.by_range, *found[-2:])
        if not has_impl(norm_quantise, *metas(arguments)):
            continue
        _put(node, normed, found, arguments)
        fused += 1
    return fused


def _put(node: Node, normed: Node, found: _Norm, arguments: tuple[Any, ...]) -> None:
    """The op with ``arguments`` in the place of ``node``, which quantises ``normed``, and of the sum."""
    last, rows = found.last, shape(normed)
    q, factors = node.meta["val"]
    by_row = arguments[4] is None
    vals = (
        (
            value(found.x)
            if found.residual is None
            else torch.empty_like(value(found.x), memory_format=torch.contiguous_format)
        ),
        q.new_empty(rows),
        factors.new_empty((*rows[:-1], 1)) if by_row else factors,
    )
    three = insert_as(last, vals, norm_quantise, *arguments)
    if found.total is not None:
        found.total.replace_all_uses_with(
            insert_item(last, three, 0), delete_user_cb=lambda user: user is not found.node
        )
    for result in list(node.users):
        replace_reshaped(result, insert_item(last, three, 1 + named(result).index), last)


def _layer_norm(normed: Node) -> _Norm | None:
    """A LayerNorm as the ops have it, with all that belongs to it."""
    if not calls(normed, element) or named(normed).index != 1:
        return None
    node: Any = named(normed).results
    total = results_of(node).get(0)
    if calls(node, ada_layer_norm):
        return _Norm(node, total, node, norm="layer", **vars(named(node)))
    if calls(node, add_layer_norm):
        call = vars(named(node))
        if call.pop("sum_bias") is None:
            found = _Norm(node, total, node, norm="layer", **call)
            return _with_gated_sum(found) if found.residual is None and total is None else found
    return None


def _with_gated_sum(found: _Norm) -> _Norm:
    """A LayerNorm of a sum with a gate, which the ops for LayerNorm have with a modulation alone."""
    total = found.x
    if not calls(total, torch.addcmul) or any(user < found.node for user in total.users if user is not found.node):
        return found
    x, residual, gate, x_weight = sum_of(total, found.eps) or (total, None, None, None)
    if gate is None or x_weight is not None:
        return found
    return found._replace(total=total, x=x, residual=residual, gate=gate)


def _rms_norm(normed: Node) -> _Norm | None:
    """An RMSNorm with the modulation behind it; with the sum that it reads, where nobody reads that before the norm is
    done.
    """
    if calls(normed, *operators("rms_adaln")) and len(normed.args) == 4 and alike(normed.args[0], normed):
        total, scale, shift, eps = normed.args
        found = _Norm(normed, None, normed, total, "rms", eps, scale=scale, shift=shift)
    else:
        node = _rms_in(normed)
        norm = None if node is None else norm_of(node)
        if norm is None or not alike(norm.node, normed):
            return None
        last, scale, shift = modulation_of(norm.node)
        if last is not normed:
            return None
        found = _Norm(
            normed, None, norm.first, norm.x, "rms", norm.eps, norm.weight, scale=scale, shift=shift, offset=norm.offset
        )
    total = found.x
    if (
        any(user < normed for user in total.users if user is not found.node)
        or (summed := sum_of(total, found.eps)) is None
    ):
        return found
    x, residual, gate, x_weight = summed
    return found._replace(total=total, x=x, residual=residual, gate=gate, x_weight=x_weight)


def _rms_in(node: Any, steps: int = 2) -> Node | None:
    """The RMSNorm of which a node is made, by a modulation's two steps at most; it may be computed in float32."""
    if calls(node, cast_like):
        node = node.args[0]
    if calls(node, F.rms_norm):
        return node
    if not steps or not calls(node, torch.mul, torch.add, torch.addcmul):
        return None
    inner = (_rms_in(arg, steps - 1) for arg in node.args if isinstance(arg, Node) and alike(arg, node))
    return next((found for found in inner if found is not None), None)
