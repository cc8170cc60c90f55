"""A linear layer with what follows it: an activation, GEGLU's gate, or the residual that its product begins from.

A sum takes no pass of its own then. Where a LayerNorm or an RMSNorm follows, it takes none anyway, and the norm's is
the better place: a product that adds a bias and a residual runs slower than one that adds a bias, SDXL as a whole takes
29.1 ms instead of 28.0 (H100; docs/notes/0047-what-a-norm-takes-along.md).

It runs before ``fuse_conv_act``: where a 1x1 convolution and a 3x3 one are added, and no kernel computes both
(``fuse_conv_shortcut``), the 1x1 one, a matrix product, is to take the sum, since of the 3x3 one's epilogues only the
bias is free.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.linear import linear
from ...weights.kitchen import operators
from ..graph import alike, calls, calls_of, insert, insert_as, metas, named, other_of, replace, shape, sole_user, value
from ..patterns import HasImpl, activation_behind, gate_behind, has_siblings
from ..views import as_it_lies, turned_back


def fuse_linear(graph: Graph, has_impl: HasImpl) -> int:
    """Each linear layer whose result nobody reads but one of these.

    An activation: GELU (exact, tanh, quick), SiLU or ReLU. A gate: ``value, gate = linear(x).chunk(2, -1); value *
    gelu(gate)``, the halves in this order or the other, with GELU or SiLU. A residual of its shape and dtype, where a
    kernel adds it: without one the sum may go elsewhere. Between the two may stand reshapes and permutations (tokens
    become an image before they are added to one): the residual is then seen as tokens, if that takes no copy. Of two
    layers that are added the later takes the sum. Layers that read one input are left to be packed.
    """
    return sum(_act(node) or _gate(node) or _add(node, has_impl) for node in reversed(calls_of(graph, F.linear)))


def _act(node: Node) -> bool:
    if found := activation_behind(node):
        last, act = found
        replace(last, insert_as(last, value(last), linear, *node.args, act))
    return found is not None


def _gate(node: Node) -> bool:
    if found := gate_behind(node):
        product, act, first = found
        replace(
            product,
            insert_as(
                product, value(product).contiguous(), linear, *node.args, act, True, *((None, True) if first else ())
            ),
        )
    return found is not None


def _add(node: Node, has_impl: HasImpl) -> bool:
    total, views = sole_user(node), []
    last = node
    while calls(total, torch.reshape, torch.permute):
        views.append(total)
        last, total = total, sole_user(total)
    if not calls(total, torch.add) or has_siblings(node) or any(map(_is_norm, total.users)):
        return False
    residual: Any = other_of(total, last)
    if not alike(residual, last) or not alike(total, last):
        return False
    call = named(node)
    weight, bias = call.weight, call.bias
    tokens, added = as_it_lies(call.input), turned_back(as_it_lies(residual), views)
    if added is None or not has_impl(linear, tokens.val, *metas((weight, bias)), "none", False, added.val):
        return False
    out = value(node).new_empty(shape(node))
    new = insert_as(total, out, linear, tokens.insert(total), weight, bias, "none", False, added.insert(total))
    for view in views:
        new = insert(total, view.target, new, view.args[1])
    replace(total, new)
    return True


def _is_norm(node: Node) -> bool:
    """Whether a node is a norm whose pass takes the sum in front of it along."""
    if calls(node, cast_like):
        return any(calls(user, F.rms_norm) for user in node.users)
    return calls(node, F.layer_norm, F.rms_norm, *operators("rms_adaln"))
