"""A mixture of experts that all compute all rows becomes an op whose kernels compute the chosen rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...capture.routed import mixture
from ...ops.quantise import quantise
from ...ops.routed_experts import routed_experts
from ...ops.routed_scaled_experts import routed_scaled_experts
from ...ops.scaled_linear import scaled_linear
from ...weights import Packed
from ..graph import (
    alike,
    calls,
    calls_of,
    insert,
    insert_as,
    metas,
    named,
    replace,
    results_of,
    shape,
    sole_user,
    value,
)
from ..packing import is_free_alone, joined, together
from ..patterns import HasImpl, MayLay, activation, gate_activation


class _Layer(NamedTuple):
    """A product and what it reads; with a ``scale`` its weight is quantised, with an ``x_scale`` its input, too."""

    x: Node
    x_scale: Node | None
    weight: Node
    scale: Node | None
    bias: Node | None


class _Quantised(NamedTuple):
    """How rows are quantised, as :func:`quantise` has it."""

    dtype: torch.dtype
    scale: Node | None
    rotate: int


class _Expert(NamedTuple):
    """A feed-forward layer: its products, the activation, and how rows are quantised between them."""

    first: _Layer
    gate: _Layer | None
    second: _Layer
    act: str
    quantised: _Quantised | None


def route_experts(graph: Graph, may_pack: MayLay, has_impl: HasImpl) -> int:
    """``mixture`` of feed-forward layers of one shape that read the same rows, where a kernel computes it."""
    return sum([_route(node, may_pack, has_impl) for node in calls_of(graph, mixture)])


def _route(node: Node, may_pack: MayLay, has_impl: HasImpl) -> bool:
    call = named(node)
    experts = [_expert(output, node) for output in call.outputs]
    if any(expert is None or not _like(expert, experts[0]) for expert in experts):
        return False
    one: Any = experts[0]
    parts: dict[str, list[Node] | None] = {}
    for name, layer in (("first", one.first), ("second", one.second), ("gate", one.gate)):
        for part in ("weight", "scale", "bias"):
            there = layer is not None and getattr(layer, part) is not None
            parts[f"{name}_{part}"] = [getattr(getattr(each, name), part) for each in experts] if there else None
    meant = {name: None if nodes is None else _meaning(nodes) for name, nodes in parts.items()}
    function, arguments = _call(one, len(experts), meant, value(node))
    if not has_impl(function, *metas((one.first.x, call.indices, call.scores, *arguments))):
        return False
    joined = {name: None if nodes is None else _joined(node, name, nodes, may_pack) for name, nodes in parts.items()}
    _, arguments = _call(one, len(experts), joined, value(node))
    replace(node, insert_as(node, value(node), function, one.first.x, call.indices, call.scores, *arguments))
    return True


def _call(one: _Expert, experts: int, joined: dict[str, Any], result: torch.Tensor) -> tuple[Any, tuple[Any, ...]]:
    """The op, and what it gets behind the rows and the choices: the experts' ``joined`` weights."""
    layers = [[joined[f"{name}_{part}"] for part in ("weight", "scale", "bias")] for name in ("first", "second")]
    gate, gate_scale = joined["gate_weight"], joined["gate_scale"]
    if one.first.scale is None:
        (first, _, first_bias), (second, _, second_bias) = layers
        return routed_experts, (first, first_bias, second, second_bias, experts, one.act, gate)
    quantised = (None, 0) if one.quantised is None else one.quantised[1:]
    more = (one.first.x_scale, result.dtype, one.act, gate, gate_scale, *quantised)
    return routed_scaled_experts, (*layers[0], *layers[1], experts, *more)


def _expert(output: Any, reader: Node) -> _Expert | None:
    """What gives ``output``, which nobody else reads, where it is a feed-forward layer."""
    second = _layer(output, reader)
    if second is None:
        return None
    hidden, reads, quantised = second.x, output, None
    if second.x_scale is not None:
        found = _quantised(second, output)
        if found is None:
            return None
        hidden, reads, quantised = found
    if sole_user(hidden) is not reads:
        return None
    if calls(hidden, torch.mul):
        return _gated(hidden, second, quantised)
    act = activation(hidden)
    first = None if act is None else _layer(hidden.args[0], hidden)
    if act is None or first is None or (first.x_scale is None) != (quantised is None):
        return None
    return _Expert(first, None, second, act, quantised)


def _gated(hidden: Node, second: _Layer, quantised: _Quantised | None) -> _Expert | None:
    for activated, plain in (hidden.args, hidden.args[::-1]):
        act, first = gate_activation(activated), _layer(plain, hidden)
        if act is None or first is None or sole_user(activated) is not hidden:
            continue
        gate = _layer(activated.args[0], activated)
        if gate is None or gate.bias is not None or first.bias is not None or not alike(activated, plain):
            continue
        if gate.x is first.x and gate.x_scale is first.x_scale and (first.x_scale is None) == (quantised is None):
            return _Expert(first, gate, second, act, quantised)
    return None


def _layer(node: Any, reader: Any) -> _Layer | None:
    """The product that a node is, whose result nobody but ``reader`` reads."""
    if not calls(node, F.linear, scaled_linear) or sole_user(node) is not reader:
        return None
    call = named(node)
    if calls(node, F.linear):
        return _Layer(call.input, None, call.weight, None, call.bias)
    return None if call.rotate else _Layer(call.x, call.input_scale, call.weight, call.weight_scale, call.bias)


def _quantised(layer: _Layer, product: Node) -> tuple[Node, Node, _Quantised] | None:
    """What is quantised for a product alone, the call that does it, and how."""
    both: Any = layer.x.args[0] if layer.x.op == "call_function" else None
    if not calls(both, quantise) or results_of(both) != {0: layer.x, 1: layer.x_scale} or len(both.users) != 2:
        return None
    if any(sole_user(each) is not product for each in both.users):
        return None
    call = named(both)
    if call.act is not None or call.times is not None or call.front is not None or call.by_range:
        return None
    return call.x, both, _Quantised(call.dtype, call.scale, call.rotate)


def _like(one: _Expert | None, other: _Expert | None) -> bool:
    """Whether two are of one shape and read the same."""
    if one is None or other is None or one.act != other.act or one.quantised != other.quantised:
        return False
    if one.first.x is not other.first.x or one.first.x_scale is not other.first.x_scale:
        return False
    mine, its = ((*each.first[2:], *(each.gate or ())[2:], *each.second[2:]) for each in (one, other))
    return len(mine) == len(its) and all(
        (a is None and b is None) or (a is not None and b is not None and alike(a, b))
        for a, b in zip(mine, its, strict=True)
    )


def _meaning(nodes: Sequence[Node]) -> torch.Tensor:
    """What a tensor of all experts looks like."""
    return Packed.meaning(*(value(node).reshape(-1) if not shape(node) else value(node) for node in nodes))


def _joined(before: Node, name: str, nodes: Sequence[Node], may_pack: MayLay) -> Node:
    """The experts' weights one below the other: as they lie from now on, or put together at each call.

    Weights that are kept in fewer bits are cast together, in one launch and without another copy.
    """
    whole = shape(nodes[0])  # numbers can't lie below one another
    if whole and all(calls(node, cast_like) and len(node.users) == 1 and alike(node, nodes[0]) for node in nodes):
        packed = _packed(name, [node.args[0] for node in nodes], may_pack)
        if packed is not None:
            return insert(before, cast_like, packed, value(nodes[0]).dtype)
    packed = _packed(name, nodes, may_pack) if whole else None
    if packed is not None:
        return packed
    rows = [node if shape(node) else insert(before, torch.reshape, node, (1,)) for node in nodes]
    return insert(before, torch.cat, rows, 0)


def _packed(name: str, nodes: Sequence[Any], may_pack: MayLay) -> Node | None:
    if not all(is_free_alone(each) and alike(each, nodes[0]) for each in nodes) or not may_pack(together(nodes)):
        return None
    return joined(f"experts_{name}", nodes)
