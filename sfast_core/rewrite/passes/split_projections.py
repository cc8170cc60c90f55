"""Linear layers that are faster apart than together: where an activation, or joining their input, is a pass.

Flux's single blocks project queries, keys, values and the feed-forward's hidden layer (Flux.2's with its gate) by one
weight, and attention and feed-forward back by one.
"""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import element
from ...ops.linear import linear as linear_op
from ..graph import (
    calls,
    calls_of,
    insert,
    insert_as,
    joins_along_last,
    named,
    replace,
    results_of,
    shape,
    sole_user,
    value,
)
from ..parts import split_of
from ..patterns import HasImpl, activation_behind, gate_behind

_FEWEST_ROWS = 128  #: below that, two products and a sum take longer than joining a few rows


def split_projections(graph: Graph, has_impl: HasImpl) -> int:
    """A linear layer of whose parts one has an activation or a gate behind it becomes one layer a part; one that reads
    two joined tensors, a sum of two.

    An activation is then in its product's epilogue, and the sum begins from the first product. The weights stay as they
    are: each product reads its rows or columns. What reads joined tensors stays where no kernel computes such a sum,
    where its epilogue is something else (:mod:`.fuse_linear` comes first), and where it has fewer columns than results:
    the sum is read and written once, as what is joined would be.
    """
    split = sum(_split_result(node) for node in calls_of(graph, F.linear))
    split += sum(_split_input(node, has_impl) for node in calls_of(graph, F.linear))
    return split


def _split_result(linear: Node) -> bool:
    taken = sole_user(linear)
    split = None if calls(taken, torch.chunk) else split_of(taken)
    if taken is None or split is None or split.dim != value(linear).dim() - 1:
        return False
    if not all(calls(user, element) for user in taken.users):
        return False
    parts, sizes = results_of(taken), split.sizes
    if len(parts) != len(sizes) or not any(_behind(part)[1] for part in parts.values()):
        return False
    call = named(linear)
    for index, start in enumerate(accumulate(sizes[:-1], initial=0)):
        part, size = parts[index], sizes[index]
        rows = [
            None if tensor is None else insert(linear, torch.narrow, tensor, 0, start, size)
            for tensor in (call.weight, call.bias)
        ]
        last, act = _behind(part)
        replace(
            last,
            insert_as(
                linear, value(linear).new_empty(shape(last)), linear_op if act else F.linear, call.input, *rows, *act
            ),
        )
    return True


def _behind(part: Node) -> tuple[Node, tuple[Any, ...]]:
    """What a part alone goes through, and which the op is to do: an activation, its half's gate, or nothing."""
    if gate := gate_behind(part):
        last, act, first = gate
        return last, (act, True, None, True) if first else (act, True)
    last, *acts = activation_behind(part) or (part,)
    return last, tuple(acts)


def _split_input(linear: Node, has_impl: HasImpl) -> bool:
    call = named(linear)
    joined, weight, bias = call.input, call.weight, call.bias
    if not calls(joined, torch.cat) or sole_user(joined) is not linear or not joins_along_last(joined):
        return False
    rows = value(joined).numel() // shape(joined)[-1]
    if rows < _FEWEST_ROWS or shape(joined)[-1] <= shape(linear)[-1]:
        return False
    parts: Any = named(joined).tensors
    if len(parts) != 2 or any(value(part).dtype != value(joined).dtype for part in parts):
        return False
    first, second = parts
    at = shape(first)[-1]
    columns = value(weight).split([at, shape(second)[-1]], dim=1)
    out = value(linear).new_empty(shape(linear))
    if not has_impl(linear_op, value(second).new_empty(shape(second)), columns[1], None, "none", False, out):
        return False
    begun = insert_as(linear, out, F.linear, first, insert(linear, torch.narrow, weight, 1, 0, at), bias)
    rest = insert(linear, torch.narrow, weight, 1, at, shape(second)[-1])
    replace(linear, insert_as(linear, out, linear_op, second, rest, None, "none", False, begun))
    return True
