"""Rotations that are spelled with cosines and sines of whole heads, of which one half is exchanged with the other."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like, element, setitem
from ..graph import called, calls, calls_of, joins_along_last, shape, sole_user
from ..parts import Part, part_at, part_of
from ..patterns import uncast
from .rotation import Rotation, back_to, heads_of


def by_cosines(graph: Graph) -> Iterator[Rotation]:
    """``x * cosines + turned * sines``, where ``turned`` has ``(-b, a)`` in the place of each pair ``(a, b)``."""
    for node in calls_of(graph, torch.add):
        if not all(calls(arg, torch.mul) and sole_user(arg) is node for arg in node.args):
            continue
        for plain, other in (node.args, node.args[::-1]):
            x, given = uncast(plain.args[0]), uncast(other.args[0])
            halves = calls(given, torch.cat)
            turned = _turned_halves(given) if halves else _turned(given)
            last = back_to(node, x) if turned is not None and turned is x else None
            cosines, sines = plain.args[1], other.args[1]
            if last is not None and shape(cosines) == shape(sines) and (heads := heads_of(x, cosines, 0)):
                readers = len(x.users) if halves and _only_halves(x, plain) else 2
                yield Rotation(last, x, heads, (cosines, sines), readers, halves=halves, form="cosines")
                break


def by_assignment(graph: Graph) -> Iterator[Rotation]:
    """``y = x * cosines``; to each half the other one of x times sines is added in place, the first's negative."""
    for node in calls_of(graph, setitem):
        before: Any = node.args[0]
        whole = before.args[0] if calls(before, setitem) and list(before.users)[-1] is node else None
        if (
            not calls(whole, torch.mul)
            or len(whole.users) != 2
            or len(before.users) != 2
            or not isinstance(whole.args[0], Node)
        ):
            continue
        given, cosines = whole.args
        put: list[Any] = [before.args, node.args]
        sines = []
        for place, (tensor, index, total) in enumerate(put):
            terms: Any = total.args if calls(total, torch.addcmul) and sole_user(total) is not None else ()
            if (
                len(terms) != 3
                or _half(part_at(tensor, index)) != place
                or _half_of(terms[0]) != (tensor, place)
                or _half_of(terms[1]) != (given, 1 - place)
            ):
                break
            sines.append(terms[2])
        x, last = uncast(given), back_to(node, uncast(given))
        if (
            len(sines) != 2
            or last is None
            or not all(
                isinstance(sine, Node) and shape(sine) == (*shape(cosines)[:-1], shape(x)[-1] // 2) for sine in sines
            )
        ):
            continue
        if heads := heads_of(x, cosines, 0):
            yield Rotation(
                last, x, heads, (cosines, *sines), readers=3 if given is x else 1, halves=True, form="assigned"
            )


def _turned(node: Any) -> Node | None:
    """What ``node`` is with its pairs exchanged and the first of each negated."""
    stack = node.args[0] if calls(node, torch.reshape) else None
    if (
        not isinstance(stack, Node)
        or stack.target is not torch.stack
        or (*stack.args[1:], *stack.kwargs.values()) != (-1,)
    ):
        return None
    negated, second = stack.args[0]
    if not called(negated, "neg", "__neg__", "negative"):
        return None
    items: tuple[Any, Any] = negated.args[0], second
    if (
        not all(calls(item, element) for item in items)
        or [item.args[1] for item in items] != [1, 0]
        or items[0].args[0] is not items[1].args[0]
    ):
        return None
    unbound = items[0].args[0]
    if not called(unbound, "unbind") or (*unbound.args[1:], *unbound.kwargs.values()) != (-1,):
        return None
    pairs: Any = unbound.args[0]
    if not calls(pairs, torch.reshape) or shape(pairs) != (
        *shape(pairs.args[0])[:-1],
        shape(pairs.args[0])[-1] // 2,
        2,
    ):
        return None
    return pairs.args[0] if shape(node) == shape(pairs.args[0]) else None


def _turned_halves(node: Node) -> Node | None:
    """What ``node`` is with its halves exchanged and the second of them, now in front, negated."""
    if not joins_along_last(node) or len(node.args[0]) != 2:
        return None
    negated, second = node.args[0]
    if not called(negated, "neg", "__neg__", "negative"):
        return None
    halves = [_half_of(item) for item in (second, negated.args[0])]
    if None in halves or halves[0][0] is not halves[1][0] or [half[1] for half in halves] != [0, 1]:  # type: ignore[index]
        return None
    return halves[0][0]  # type: ignore[index]


def _half_of(node: Any) -> tuple[Node, int] | None:
    """Of which node another is a half, and which."""
    part = part_of(node)
    half = _half(part)
    return None if part is None or half is None else (part.x, half)


def _half(part: Part | None) -> int | None:
    """Which half of the last dimension a part is."""
    if part is None or not part.is_of_last:
        return None
    middle = shape(part.x)[-1] // 2
    return {(0, middle): 0, (middle, 2 * middle): 1}.get((part.start, part.stop))


def _only_halves(x: Node, plain: Node) -> bool:
    """Whether all that reads ``x`` is what multiplies it by cosines, and what takes its halves."""
    return all(
        user is plain or user.target is cast_like or calls(user, torch.chunk) or user.target == "__getitem__"
        for user in x.users
    )
