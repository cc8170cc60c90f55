"""SwiGLU of two layers: their weights become one, and the gate goes into the epilogue of one product."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.linear import linear
from ...weights import Packed
from ..graph import alike, calls, calls_of, insert_as, named, replace, sole_user, value
from ..packing import is_free_alone, joined, together
from ..patterns import HasImpl, MayLay


def pack_gated(graph: Graph, has_impl: HasImpl, may_pack: MayLay) -> int:
    """``up(x) * act(gate(x))``, where nobody else reads either, and a kernel computes both.

    Of all that reads x, these two are packed together.
    """
    return sum([_pack(node, has_impl, may_pack) for node in calls_of(graph, torch.mul)])


def _pack(node: Node, has_impl: HasImpl, may_pack: MayLay) -> bool:
    for gate, up in (node.args, node.args[::-1]) if len(node.args) == 2 else ():
        if not (
            _is_gate(gate)
            and calls(up, F.linear)
            and sole_user(gate) is node
            and sole_user(up) is node
            and alike(gate, node)
            and alike(up, node)
        ):
            continue
        own, gates = named(up), named(gate)
        x, act = own.input, gates.act
        if gates.x is not x or (own.bias is None) != (gates.bias is None) or own.weight is gates.weight:
            return False
        pairs = [pair for pair in ((own.weight, gates.weight), (own.bias, gates.bias)) if pair[0] is not None]
        if not all(is_free_alone(part) for pair in pairs for part in pair):
            return False
        arguments = [Packed.meaning(*map(value, pair)) for pair in pairs]
        bias = arguments[1] if len(arguments) > 1 else None
        if not has_impl(linear, value(x), arguments[0], bias, act, True) or not all(
            may_pack(together(pair)) for pair in pairs
        ):
            return False
        nodes = [joined(name, pair) for name, pair in zip(("gated_weight", "gated_bias"), pairs, strict=False)]
        replace(
            node, insert_as(node, value(node).contiguous(), linear, x, *nodes, *[None] * (2 - len(nodes)), act, True)
        )
        return True
    return False


def _is_gate(node: Any) -> bool:
    """Whether a node is a linear layer with an activation behind it, and nothing else."""
    return calls(node, linear) and (call := named(node)).act != "none" and not call.gated and call.residual is None
