"""What is done to a tensor right in front of quantising it is done where it is read: an activation, a gate, what is
joined in front, a copy of its rows.

Each step is rounded as before, so the numbers are the same. What somebody else reads, too, has to be made anyway, and
stays.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Graph, Node

from ...capture.functional import element
from ...ops.quantise import quantise
from ..graph import (
    alike,
    calls,
    calls_of,
    given,
    insert_as,
    insert_item,
    joins_along_last,
    metas,
    named,
    replace_reshaped,
    shape,
    sole_user,
    value,
)
from ..patterns import SIGMOIDS, HasImpl, gate_activation, in_other_rows, made_of_rows


class _Source(NamedTuple):
    """What :func:`quantise` is to read: ``cat([front, act(x) * times], -1)``."""

    x: Node
    act: str | None = None
    times: Node | None = None
    front: Node | None = None


def fold_into_quantise(graph: Graph, has_impl: HasImpl) -> int:
    """Each quantising that can read something in front of its input. Returns how many there were."""
    folded = 0
    for node in calls_of(graph, quantise):
        call = named(node)
        if any(part is not None for part in (call.act, call.times, call.front)) or not all(
            calls(user, element) for user in node.users
        ):
            continue
        source = _source(node)
        if source is not None and has_impl(quantise, *metas(_arguments(node, source))):
            _let_read(node, source)
            folded += 1
    return folded


def _arguments(node: Node, source: _Source) -> tuple[Any, ...]:
    return given(node, **source._asdict())


def _source(node: Node) -> _Source | None:
    """What a call of quantise can read instead of its input; None where that is nothing new."""
    read: Any = named(node).x
    x, alone = in_other_rows(read, node)
    if alone and (found := _joined(x) or _made(x)) is not None:
        return found
    return None if x is read or _is_view(x, read) else _Source(x)


def _is_view(x: Node, reshaped: Node) -> bool:
    try:
        value(x).view(shape(reshaped))
    except RuntimeError:
        return False
    return True


def _joined(x: Node) -> _Source | None:
    """Two tensors side by side, the second perhaps made of others."""
    if not calls(x, torch.cat) or not joins_along_last(x):
        return None
    parts: Any = named(x).tensors
    if len(parts) != 2 or parts[0] is parts[1] or any(value(part).dtype != value(x).dtype for part in parts):
        return None
    front, rest = parts
    made = _made(rest) if sole_user(rest) is x else None
    return (made or _Source(rest))._replace(front=front)


def _made(x: Node) -> _Source | None:
    """An activation, or a product of two tensors alike, one of them perhaps behind an activation."""
    if (act := gate_activation(x)) is not None:
        return _Source(x.args[0], act)
    if not calls(x, torch.mul) or not all(alike(arg, x) for arg in x.args):
        return None
    left, right = x.args
    for gate, times in ((left, right), (right, left)):
        act = "sigmoid" if gate.target in SIGMOIDS else gate_activation(gate)
        if act is not None and sole_user(gate) is x:
            return _Source(gate.args[0], act, times)
    return _Source(left, None, right)


def _let_read(node: Node, source: _Source) -> None:
    """Put a call that reads ``source`` in the place of ``node``, its results seen in node's rows."""
    call, x = named(node), value(source.x)
    width = x.shape[-1] + (0 if source.front is None else shape(source.front)[-1])
    made = made_of_rows(x, call.dtype, metas(call.scale), width)
    new = insert_as(node, made, quantise, *_arguments(node, source))
    for user in list(node.users):
        replace_reshaped(user, insert_item(user, new, named(user).index), user)
