"""Linear layers that read the same input become one matrix product, and their weights one tensor.

Three passes, told apart by what the layers read.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...weights import PACKED, Packed, Weight
from ..graph import (
    calls_of,
    insert,
    insert_as,
    is_free_weight,
    lay_views_like,
    named,
    new_weight,
    replace,
    shape,
    value,
)
from ..patterns import MayLay, from_input

_PACKED = ("weight", "bias")


def pack_context(graph: Graph, may_pack: MayLay) -> int:
    """All projections of an input of the call: the keys and values of every cross-attention, which read the prompt.

    SDXL: 140 products of 154 rows become one, about 1 ms a step becomes 0.25 ms.
    """
    return _pack(graph, may_pack, lambda x: value(x).dim() == 3 and from_input(x))


def pack_embedding(graph: Graph, may_pack: MayLay) -> int:
    """All projections of a vector per sample: every residual block's of the timestep embedding."""
    return _pack(graph, may_pack, lambda x: value(x).dim() == 2)


def pack_qkv(graph: Graph, may_pack: MayLay) -> int:
    """Queries, keys and values of self-attention, and whatever else reads one token sequence."""
    return _pack(graph, may_pack, lambda x: value(x).dim() >= 3 and not from_input(x))


def _pack(graph: Graph, may_pack: MayLay, wanted: Callable[[Node], bool]) -> int:
    """Join the linear layers that read the same node, where ``wanted`` says so of that node.

    Returns how many were joined.
    """
    groups: dict[tuple[Node, bool], list[Node]] = {}
    for node in calls_of(graph, F.linear):
        call = named(node)
        if wanted(call.input) and _packable(node):
            groups.setdefault((call.input, call.bias is None), []).append(node)
    packed = 0
    for members in groups.values():
        if len(members) > 1 and all(
            may_pack(_together(members, name)) for name in _PACKED if getattr(named(members[0]), name) is not None
        ):
            _join(members)
            packed += len(members)
    return packed


def _packable(node: Node) -> bool:
    """The weight and the bias are the module's own and nobody else's."""
    return all(
        is_free_weight(arg) and len(arg.users) == 1
        for name in _PACKED
        if (arg := getattr(named(node), name)) is not None
    )


def _together(members: list[Node], name: str) -> Weight:
    """The weights, or the biases, of these layers as one."""
    return Weight(tuple(getattr(named(node), name).meta["source"].refs[0] for node in members), PACKED)


def _join(members: list[Node]) -> None:
    first = members[0]
    arguments: list[Node | None] = []
    for name in _PACKED:
        parts = [getattr(named(node), name) for node in members]
        if parts[0] is None:
            arguments.append(None)
            continue
        joined = Packed.meaning(*map(value, parts))
        arguments.append(new_weight(parts[0], f"packed_{name}", _together(members, name), joined))
    widths = [shape(node)[-1] for node in members]
    together = value(first).new_empty((*shape(first)[:-1], sum(widths)))
    product = insert_as(first, together, F.linear, named(first).input, *arguments)
    parts = [insert(first, torch.narrow, product, -1, sum(widths[:index]), width) for index, width in enumerate(widths)]
    for node, part in zip(members, parts, strict=True):
        replace(node, part)
        lay_views_like(part)
