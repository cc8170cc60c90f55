"""A gated feed-forward layer with quantised weights: the gate in the epilogue of one product with both weights.

Runs in front of :mod:`.fold_into_quantise`, which takes gates where there is no such product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ...capture.functional import element
from ...ops.scaled_glu import scaled_glu
from ...ops.scaled_linear import scaled_linear
from ..graph import (
    alike,
    calls,
    calls_of,
    insert,
    insert_as,
    metas,
    named,
    replace_reshaped,
    shape,
    sole_user,
    value,
)
from ..parts import part_of
from ..patterns import HasImpl, gate_activation


class _Half(NamedTuple):
    """A product, or half of one's features."""

    product: Node
    start: int
    reader: Node  #: of the product: what takes the half, or the product itself


def fuse_scaled_glu(graph: Graph, has_impl: HasImpl) -> int:
    """``y * act(g)`` of two products of a quantised input, or of one's halves, that nobody else reads."""
    return sum([_fuse(node, has_impl) for node in calls_of(graph, torch.mul)])


def _fuse(node: Node, has_impl: HasImpl) -> bool:
    for activated, plain in (node.args, node.args[::-1]) if len(node.args) == 2 else ():
        act = gate_activation(activated)
        if act is None or sole_user(activated) is not node or not alike(activated, node) or not alike(plain, node):
            continue
        gate, up = _half(activated.args[0], activated), _half(plain, node)
        if gate is None or up is None or not _belong(gate, up):
            continue
        arguments = _arguments(node, gate, up, act)
        if has_impl(scaled_glu, *metas(arguments)):
            rows = (*shape(up.product)[:-1], shape(node)[-1])
            new = insert_as(node, value(node).new_empty(rows), scaled_glu, *arguments)
            replace_reshaped(node, new, node)
            return True
    return False


def _half(node: Any, reader: Node) -> _Half | None:
    """The product of which a node shows all or half the features, in whatever rows; ``reader`` alone reads it."""
    start = 0
    while sole_user(node) is reader:
        if calls(node, scaled_linear):
            return _Half(node, start, reader)
        reader, taken = node, node
        if calls(node, torch.reshape) and shape(node)[-1] == shape(node.args[0])[-1]:
            node = node.args[0]
        elif (part := part_of(node)) is not None and part.is_of_last:
            return _within(part.x, part.start, named(node).results if calls(node, element) else taken)
        else:
            return None
    return None


def _within(node: Any, start: int, reader: Node) -> _Half | None:
    """Of a product of which two parts are taken."""
    while calls(node, torch.reshape):
        source: Any = node.args[0]
        if shape(node)[-1] != shape(source)[-1] or sole_user(source) is not node:
            return None
        node = source
    return _Half(node, start, reader) if calls(node, scaled_linear) else None


def _belong(gate: _Half, up: _Half) -> bool:
    """Whether both are of one input, and nothing else is read of the product if it is one."""
    one, other = gate.product, up.product
    if one is other:
        return (
            {gate.start, up.start} == {0, shape(one)[-1] // 2}
            and shape(one)[-1] % 2 == 0
            and _readers(one) == {gate.reader, up.reader}
        )
    mine, theirs = vars(named(one)), vars(named(other))
    return all(mine[name] == theirs[name] for name in ("x", "input_scale", "out_dtype", "rotate")) and shape(
        one
    ) == shape(other)


def _readers(product: Node) -> set[Node]:
    """What takes parts of a product, perhaps with its rows counted otherwise."""
    users = set(product.users)
    while len(users) == 1 and calls(next(iter(users)), torch.reshape):
        users = set(next(iter(users)).users)
    return users


def _arguments(node: Node, gate: _Half, up: _Half, act: str) -> tuple[Any, ...]:
    call = named(up.product)
    weight, scale, bias = _part(node, up, gate.product is up.product)
    gate_weight, gate_scale, gate_bias = _part(node, gate, gate.product is up.product)
    return (call.x, weight, scale, gate_weight, gate_scale, bias, gate_bias, call.input_scale, call.out_dtype, act)


def _part(node: Node, half: _Half, is_half: bool) -> tuple[Any, ...]:
    """Weight, scale and bias of a product or of half its features."""
    call = named(half.product)
    weight, scale, bias = call.weight, call.weight_scale, call.bias
    if not is_half:
        return weight, scale, bias
    width = shape(half.product)[-1] // 2
    cut = [
        None if given is None or value(given).numel() == 1 else insert(node, torch.narrow, given, 0, half.start, width)
        for given in (weight, scale, bias)
    ]
    return cut[0], scale if cut[1] is None else cut[1], cut[2]
