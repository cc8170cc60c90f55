"""Rotations that are spelled pair by pair, of neighbouring elements: stacked, or written to every other place."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like, element, setitem
from ..graph import called, calls, insert, shape, sole_user, value
from ..patterns import uncast
from .rotation import Rotation, back_to, heads_of, two_terms


def by_pairs(graph: Graph) -> Iterator[Rotation]:
    """``a * cosines - b * sines`` and ``a * sines + b * cosines`` of each pair, stacked or in every other place."""
    for node in [node for node in graph.nodes if node.target in (torch.stack, setitem)]:
        found = _stacked_pair(node) if node.target is torch.stack else _assigned_pair(node)
        terms = None if found is None else _turned_pair(*found[1:])
        if found is None or terms is None:
            continue
        x, cosines, sines = terms
        last, heads = back_to(found[0], uncast(x)), heads_of(uncast(x), cosines, 0, 2)
        if last is not None and heads and shape(last) == shape(uncast(x)) and shape(cosines) == shape(sines):
            yield Rotation(
                last,
                uncast(x),
                heads,
                (cosines, sines),
                readers=len(uncast(x).users) if _only_pairs(uncast(x)) else 1,
                form="pair",
            )


def _stacked_pair(node: Node) -> tuple[Node, Node, Node] | None:
    """What a stack of two along a new last dimension is seen as, and the two."""
    parts: Any = node.args[0]
    flat = sole_user(node)
    flat = sole_user(flat) if calls(flat, cast_like) else flat
    if len(parts) != 2 or (*node.args[1:], *node.kwargs.values()) != (-1,) or not calls(flat, torch.reshape):
        return None
    return flat, parts[0], parts[1]


def _assigned_pair(node: Node) -> tuple[Node, Node, Node] | None:
    """The last of two assignments to a tensor's even and odd places, and what is put there."""
    first: Any = node.args[0]
    if not calls(first, setitem) or list(first.users) != [node]:
        return None
    put: list[Any] = [first.args, node.args]
    return (node, put[0][2], put[1][2]) if [_offset(args[1]) for args in put] == [0, 1] else None


def _offset(index: Any) -> int | None:
    """Where the places begin, every other one of the last dimension, that an index names."""
    if (
        isinstance(index, tuple)
        and len(index) == 2
        and index[0] is Ellipsis
        and isinstance(index[1], slice)
        and index[1].step == 2
        and index[1].stop is None
    ):
        return index[1].start or 0
    return None


def _turned_pair(first: Any, second: Any) -> tuple[Node, Node, Node] | None:
    """x, cosines and sines of what both elements of a pair become."""
    if not called(first, "sub", "__sub__") or len(first.args) != 2 or first.kwargs:
        return None
    terms = (
        [term.args for term in first.args if calls(term, torch.mul)] + two_terms(second)
        if calls(second, torch.add, torch.addcmul)
        else []
    )
    if len(terms) != 4:
        return None
    taken = [_taken(*term) for term in terms]
    if None in taken:
        return None
    (a, cosines, zero), (b, sines, one), *others = taken  # type: ignore[misc]
    wanted = {(a, sines, zero), (b, cosines, one)}
    return (a, cosines, sines) if a is b and (zero, one) == (0, 1) and set(others) == wanted else None


def _taken(*factors: Any) -> tuple[Node, Node, int] | None:
    """The pairs of which one of a product's two factors is an element, the other, and which element."""
    for given, factor in (factors, factors[::-1]):
        given = uncast(given)
        if (
            calls(given, element)
            and called(given.args[0], "unbind")
            and (*given.args[0].args[1:], *given.args[0].kwargs.values()) == (-1,)
        ):
            pairs: Any = given.args[0].args[0]
            if calls(pairs, torch.reshape) and value(pairs).dim() == 5 and shape(pairs)[-1] == 2:
                return _seen_in_heads(pairs), factor, given.args[1]
        if isinstance(given, Node) and given.target == "__getitem__" and (first := _offset(given.args[1])) is not None:
            return given.args[0], factor, first
    return None


def _seen_in_heads(pairs: Node) -> Node:
    """The heads that pairs are made of: by now they may be made of what the heads are made of."""
    base: Any = pairs.args[0]
    wanted = (*shape(pairs)[:-2], 2 * shape(pairs)[-2])
    if shape(base) == wanted:
        return base
    heads = next(
        (user for user in base.users if calls(user, torch.reshape) and shape(user) == wanted and user < pairs), None
    )
    heads = heads or insert(pairs, torch.reshape, base, wanted)
    pairs.args = (heads, pairs.args[1])
    return heads


def _only_pairs(x: Node) -> bool:
    """Whether all that reads ``x`` takes elements of its pairs."""
    users = [user for reader in x.users for user in (reader.users if calls(reader, cast_like) else [reader])]
    return all(
        calls(user, torch.reshape) or user.target == "__getitem__" or called(user, "empty_like") for user in users
    )
