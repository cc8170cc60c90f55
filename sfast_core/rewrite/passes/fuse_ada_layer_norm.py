"""The modulation behind a diffusion transformer's LayerNorm and the gate of the residual in front of it, in the norm's
own pass.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.ada_layer_norm import ada_layer_norm
from ...ops.add_layer_norm import add_layer_norm
from ..graph import (
    alike,
    calls,
    calls_of,
    given,
    insert_as,
    insert_item,
    metas,
    named,
    other_of,
    replace,
    respell,
    results_of,
    shape,
    sole_user,
    value,
)
from ..patterns import HasImpl, gate_of, has_own_bias, is_row, less_one
from ..repeats import by_part


class _Modulation(NamedTuple):
    last: Node  #: whose result it is
    scale: Node  #: less the 1 that is added to it
    shift: Node


class _Sum(NamedTuple):
    """``residual + gate * x``."""

    node: Node | None  #: whose result it is, where anybody reads it
    x: Node
    gate: Node | None
    residual: Node | None


def fuse_ada_layer_norm(graph: Graph, has_impl: HasImpl) -> int:
    """``norm * (1 + scale) + shift``, also as ``addcmul``, where nobody else reads the norm, and its weights, if it has
    any, are of its dtype.

    Of the sum that the norm reads, a product with one gate for each image goes along, and the bias of the linear layer
    behind that. Without an impl all stays as it is.
    """
    fused = 0
    for norm in calls_of(graph, add_layer_norm):
        call, results = named(norm), results_of(norm)
        x_bias = call.x_bias
        found = _modulation(results[1]) if 1 in results else None
        if call.sum_bias is not None or found is None:
            continue
        sum_ = _gated(norm, results.get(0))
        if sum_.node is not None and any(user < found.last for user in sum_.node.users if user is not norm):
            continue
        # it belongs to one of the summands, and which is gated isn't told
        if x_bias is not None and sum_.gate is not None:
            continue
        linear = sum_.x if sum_.gate is not None and has_own_bias(sum_.x) else None
        x_bias = named(linear).bias if linear is not None else x_bias
        (scale, shift, gate), part = by_part(found.scale, found.shift, sum_.gate)
        arguments = (sum_.x, scale, shift, call.eps, sum_.residual, gate, x_bias, part, call.weight, call.bias)
        if not has_impl(ada_layer_norm, *metas(arguments)):
            continue
        if linear is not None:  # of tokens that are a slice of others, a product with a bias is two kernels
            respell(linear, value(linear), F.linear, *given(linear, bias=None))
        both = insert_as(found.last, norm.meta["val"], ada_layer_norm, *arguments)
        if sum_.node is not None:
            sum_.node.replace_all_uses_with(
                insert_item(found.last, both, 0), delete_user_cb=lambda user, norm=norm: user is not norm
            )
        replace(found.last, insert_item(found.last, both, 1))
        fused += 1
    return fused


def _modulation(normed: Node) -> _Modulation | None:
    user = sole_user(normed)
    if calls(user, torch.addcmul):
        call = named(user)
        last, shift, factors = user, call.input, (call.tensor1, call.tensor2)
    elif calls(user, torch.mul) and (summed := sole_user(user)) is not None and calls(summed, torch.add):
        last, factors = summed, user.args
        shift = other_of(summed, user)
    else:
        return None
    scale = less_one(next((factor for factor in factors if factor is not normed), None), normed)
    if scale is None or not is_row(shift, normed) or not alike(last, normed):
        return None
    return _Modulation(last, scale, shift)


def _gated(norm: Node, total: Node | None) -> _Sum:
    """What ``norm`` sums up, ``total`` being the sum that it gives, or what has been summed up for it."""
    x, residual = named(norm).x, named(norm).residual
    if residual is None:
        if (
            calls(x, torch.addcmul)
            and (found := gate_of((named(x).tensor1, named(x).tensor2), x))
            and shape(named(x).input) == shape(x)
        ):
            return _Sum(x, *found, named(x).input)
        return _Sum(None, x, None, None)
    for product, kept in ((x, residual), (residual, x)):
        if calls(product, torch.mul) and sole_user(product) is norm and (found := gate_of(product.args, product)):
            return _Sum(total, *found, kept)
    return _Sum(total, x, None, residual)
