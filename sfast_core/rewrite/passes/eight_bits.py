"""Linear layers of a model of 16 or 32 bits computed in 8: their input quantised by row, their weight by feature.

Not exact. It is left out unless the user allows it, and who takes part is decided outside
(:mod:`..quality.sensitivity`). What is made here is what products with quantised weights are
(:mod:`.recover_scaled_linear`), so all that is done for those is done for these.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.quantise import quantise
from ...ops.scaled_linear import scaled_linear
from ...weights import PACKED, Weight
from ...weights.eight_bits import EIGHT_BITS, NUMBERS, ROTATED, ROTATED_SCALES, SCALES, group_of
from ..graph import (
    FLOATS,
    calls_of,
    insert_as,
    insert_item,
    is_free_weight,
    is_weight,
    named,
    new_weight,
    replace,
    shape,
    value,
)
from ..packing import compute_together, is_free_alone, joined, together
from ..patterns import MayLay, made_of_rows

#: Which of a graph's linear layers are to be computed so, each with whether it is rotated.
InEightBits = Callable[[Graph, Sequence[Node]], dict[Node, bool]]


def eight_bits(graph: Graph, in_eight_bits: InEightBits) -> int:
    """Each linear layer that is to be. Returns how many there were."""
    chosen = in_eight_bits(graph, [node for node in calls_of(graph, F.linear) if _is_one(node)])
    quantised: dict[tuple[Node, int], tuple[Node, Node]] = {}
    made: dict[tuple[Node, bool], list[Node]] = {}
    for node in [node for node in calls_of(graph, F.linear) if node in chosen]:
        call, rotated = named(node), chosen[node]
        rotate = group_of(shape(call.weight)[1]) if rotated else 0
        if (call.input, rotate) not in quantised:
            both = insert_as(
                node, made_of_rows(value(call.input), torch.int8, None), quantise, call.input, torch.int8, None, rotate
            )
            quantised[call.input, rotate] = insert_item(node, both, 0), insert_item(node, both, 1)
        x, input_scale = quantised[call.input, rotate]
        if (call.weight, rotated) not in made:
            made[call.weight, rotated] = [
                _made(call.weight, name) for name in ((ROTATED, ROTATED_SCALES) if rotated else (NUMBERS, SCALES))
            ]
        weight, scale = made[call.weight, rotated]
        product = insert_as(
            node,
            value(node).contiguous(),
            scaled_linear,
            x,
            weight,
            scale,
            call.bias,
            input_scale,
            value(node).dtype,
            0,
        )
        replace(node, product)
    return len(chosen)


def pack_eight_bits(graph: Graph, in_eight_bits: InEightBits, may_pack: MayLay) -> int:
    """Products of that kind that read the same numbers become one. Returns how many were joined."""
    groups: dict[object, list[Node]] = {}
    for node in calls_of(graph, scaled_linear):
        call = named(node)
        sources = [
            arg.meta["source"] for arg in (call.weight, call.weight_scale) if is_weight(arg) and len(arg.users) == 1
        ]
        if (
            len(sources) == 2
            and all(source.layout in EIGHT_BITS and len(source.refs) == 1 for source in sources)
            and is_free_alone(call.bias)
        ):
            groups.setdefault(
                (call.x, call.input_scale, call.bias is None, sources[0].layout, call.out_dtype), []
            ).append(node)
    count = 0
    for members in groups.values():
        biased = named(members[0]).bias is not None
        if len(members) > 1 and (not biased or may_pack(together([named(node).bias for node in members]))):
            _join(members)
            count += len(members)
    return count


def _is_one(node: Node) -> bool:
    call = named(node)
    if not is_free_weight(call.weight) or value(call.weight).dim() != 2 or value(call.weight).dtype not in FLOATS:
        return False
    return (
        value(call.input).dtype == value(call.weight).dtype == value(node).dtype
        and call.weight.meta["source"].refs[0].part is None
    )


def _made(weight: Node, layout: str) -> Node:
    """A placeholder for what is made of a weight."""
    source = Weight(weight.meta["source"].refs, layout)
    return new_weight(weight, f"{weight.name}_{layout}", source, EIGHT_BITS[layout].meaning(value(weight)))


def _join(members: list[Node]) -> None:
    call = named(members[0])
    arguments: list[Node | None] = []
    for name in ("weight", "weight_scale", "bias"):
        parts = [getattr(named(node), name) for node in members]
        layout = PACKED if name == "bias" else parts[0].meta["source"].layout
        arguments.append(None if parts[0] is None else joined(f"joined_{name}", parts, layout))
    compute_together(members, scaled_linear, call.x, *arguments, call.input_scale, call.out_dtype, 0)
