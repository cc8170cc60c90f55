"""A mixture of experts that all compute all rows becomes an op whose kernels compute the chosen rows alone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.routed import mixture
from ...ops.routed_experts import routed_experts
from ...weights import PACKED, Packed, Weight
from ..graph import (
    alike,
    calls,
    calls_of,
    drop_unused,
    insert,
    insert_as,
    is_free_weight,
    metas,
    named,
    new_weight,
    replace,
    sole_user,
    value,
)
from ..patterns import HasImpl, MayLay, activation, gate_activation


class _Expert(NamedTuple):
    """A feed-forward layer: its input, its weights, and its activation."""

    x: Node
    first: Node
    first_bias: Node | None
    gate: Node | None
    second: Node
    second_bias: Node | None
    act: str


def route_experts(graph: Graph, may_pack: MayLay, has_impl: HasImpl) -> int:
    """``mixture`` of feed-forward layers of one shape that read the same rows, where a kernel computes it."""
    routed = sum([_route(node, may_pack, has_impl) for node in calls_of(graph, mixture)])
    drop_unused(graph)
    return routed


def _route(node: Node, may_pack: MayLay, has_impl: HasImpl) -> bool:
    call = named(node)
    experts = [_expert(output, node) for output in call.outputs]
    if any(expert is None or not _like(expert, experts[0]) for expert in experts):
        return False
    one: Any = experts[0]
    parts: dict[str, list[Node] | None] = {
        name: None if getattr(one, name) is None else [getattr(expert, name) for expert in experts]
        for name in ("first", "first_bias", "second", "second_bias", "gate")
    }
    joined = {name: None if nodes is None else Packed.meaning(*map(value, nodes)) for name, nodes in parts.items()}
    given = [metas(one.x), metas(call.indices), metas(call.scores)]
    weights = [joined[name] for name in ("first", "first_bias", "second", "second_bias")]
    if not has_impl(routed_experts, *given, *weights, len(experts), one.act, joined["gate"]):
        return False
    first, first_bias, second, second_bias, gate = (
        None if nodes is None else _joined(node, name, nodes, may_pack) for name, nodes in parts.items()
    )
    arguments = call.indices, call.scores, first, first_bias, second, second_bias, len(experts), one.act, gate
    replace(node, insert_as(node, value(node), routed_experts, one.x, *arguments))
    return True


def _expert(output: Any, reader: Node) -> _Expert | None:
    """What gives ``output``, which nobody else reads, where it is a feed-forward layer."""
    if not calls(output, F.linear) or sole_user(output) is not reader:
        return None
    second = named(output)
    hidden = second.input
    if sole_user(hidden) is not output:
        return None
    if calls(hidden, torch.mul):
        return _gated(hidden, second)
    act = activation(hidden)
    product = None if act is None else hidden.args[0]
    if act is None or not calls(product, F.linear) or sole_user(product) is not hidden:
        return None
    first = named(product)
    return _Expert(first.input, first.weight, first.bias, None, second.weight, second.bias, act)


def _gated(hidden: Node, second: Any) -> _Expert | None:
    for activated, plain in (hidden.args, hidden.args[::-1]):
        act = gate_activation(activated)
        if act is None or not calls(plain, F.linear) or sole_user(plain) is not hidden:
            continue
        product = activated.args[0]  # type: ignore[union-attr]
        if not calls(product, F.linear) or sole_user(product) is not activated or sole_user(activated) is not hidden:  # type: ignore[arg-type]
            continue
        gate, first = named(product), named(plain)
        if gate.input is first.input and gate.bias is None and first.bias is None and alike(product, plain):
            return _Expert(first.input, first.weight, None, gate.weight, second.weight, second.bias, act)
    return None


def _like(one: _Expert | None, other: _Expert | None) -> bool:
    """Whether two are of one shape and read the same."""
    if one is None or other is None or one.x is not other.x or one.act != other.act:
        return False
    return all(
        (mine is None and its is None) or (mine is not None and its is not None and alike(mine, its))
        for mine, its in zip(one[1:-1], other[1:-1], strict=True)
    )


def _joined(before: Node, name: str, nodes: Sequence[Node], may_pack: MayLay) -> Node:
    """The experts' weights one below the other: as they lie from now on, or put together at each call."""
    if all(is_free_weight(each) and len(each.users) == 1 for each in nodes):
        weight = Weight(tuple(each.meta["source"].refs[0] for each in nodes), PACKED)
        if may_pack(weight):
            return new_weight(nodes[0], f"experts_{name}", weight, Packed.meaning(*map(value, nodes)))
    return insert(before, torch.cat, list(nodes), 0)
