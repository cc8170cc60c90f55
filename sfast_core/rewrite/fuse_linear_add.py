"""A linear layer and the residual that its result is added to, which the layer's matrix product can begin from.

The sum takes no pass of its own then. Where a LayerNorm or an RMSNorm follows, it takes none anyway, and ``add_layer_norm`` or ``ada_rms_norm`` is the better place: a product
that adds a bias and a residual runs slower than one that adds a bias (H100, fp16, us, with the LayerNorm: 2048x1280x1280 22.5, as
``add_layer_norm`` 19.0; 8192x640x2560 62.8 and 54.4; SDXL as a whole 29.1 and 28.0 ms).

It runs before ``fuse_conv_act``: where a 1x1 convolution and a 3x3 one are added, and no kernel computes both (``fuse_conv_shortcut``), the
1x1 one, a matrix product, is to take the sum, since of the 3x3 one's epilogues only the bias is free.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.functional import cast_like
from ..ops.linear_add import linear_add
from .graph import calls, calls_of, drop_unused, insert, insert_as, metas, replace, shape, sole_user, value
from .views import as_it_lies, turned_back

#: Whether a kernel computes a call of an op here: gets the op's reference and its arguments as meta tensors.
HasImpl = Callable[..., bool]


def fuse_linear_add(graph: Graph, has_impl: HasImpl) -> int:
    """``linear(x) + residual`` of one shape and dtype, where nobody else reads the linear layer's result.

    Between the two may stand reshapes and permutations (tokens become an image before they are added to one): the residual is then seen as
    tokens, if that takes no copy. Of two layers that are added the later takes the sum. Layers that read one input are left to be packed.

    Without an impl the op is worth nothing: then all stays as it is, and the sum may go elsewhere.
    """
    fused = 0
    for total in calls_of(graph, torch.add):
        if any(map(_is_norm, total.users)):
            continue
        pairs = zip(total.args, reversed(total.args), strict=True)
        found = [(chain, other) for arg, other in pairs if (chain := _linear_behind(arg)) and _is_residual(other, arg, total)]
        for chain, residual in sorted(found, key=lambda pair: pair[0][0], reverse=True):
            if _fuse(total, chain, residual, has_impl):
                fused += 1
                break
    drop_unused(graph)
    return fused


def _is_norm(node: Node) -> bool:
    """Whether a node is a norm whose pass takes the sum in front of it along."""
    if calls(node, cast_like):
        return any(calls(user, F.rms_norm) for user in node.users)
    return calls(node, F.layer_norm, F.rms_norm) or (hasattr(torch.ops.comfy_kitchen, "rms_adaln") and calls(node, torch.ops.comfy_kitchen.rms_adaln))


def _linear_behind(node: Any) -> list[Node] | None:
    """The linear layer that ``node`` shows the result of, and the views from it to ``node``; each has one user."""
    chain: list[Node] = []
    while isinstance(node, Node) and sole_user(node) is not None:
        chain.insert(0, node)
        if calls(node, F.linear):
            return None if has_siblings(node) else chain
        if not calls(node, torch.reshape, torch.permute):
            return None
        node = node.args[0]
    return None


def has_siblings(linear: Node) -> bool:
    """Whether other linear layers read the same input."""
    return any(user is not linear and calls(user, F.linear) and user.args[0] is linear.args[0] for user in linear.args[0].users)


def _is_residual(other: Any, arg: Node, total: Node) -> bool:
    """Whether ``total = arg + other`` is a sum of two tensors of its own shape and dtype."""
    return (
        isinstance(other, Node)
        and other is not arg
        and shape(other) == shape(arg) == shape(total)
        and value(other).dtype == value(arg).dtype == value(total).dtype
    )


def _fuse(total: Node, chain: list[Node], residual: Node, has_impl: HasImpl) -> bool:
    linear, *views = chain
    x, weight, bias = linear.args
    tokens, added = as_it_lies(x), turned_back(as_it_lies(residual), views)
    if added is None or not has_impl(linear_add, tokens.val, *metas((weight, bias)), added.val):
        return False
    out = value(linear).new_empty(shape(linear))
    new = insert_as(total, out, linear_add, tokens.insert(total), weight, bias, added.insert(total))
    for view in views:
        new = insert(total, view.target, new, view.args[1])  # type: ignore[arg-type]
    replace(total, new)
    return True
