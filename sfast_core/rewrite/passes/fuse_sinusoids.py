"""The sinusoids of a timestep, or of sizes: sines and cosines of its multiples, beside one another."""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.sinusoids import sinusoids
from ..graph import calls, calls_of, insert_as, joins_along_last, metas, replace, shape, sole_user, value
from ..parts import part_of
from ..patterns import HasImpl


def fuse_sinusoids(graph: Graph, has_impl: HasImpl) -> int:
    """``cat([cos(x * frequencies), sin(x * frequencies)], -1)`` or sines first, with the casts around it.

    diffusers puts sines first, and exchanges the halves of what it has behind that. Without an impl all stays as it is.
    """
    fused = 0
    exchanged: set[Node] = set()
    for node in reversed(calls_of(graph, torch.cat)):
        if node in exchanged or not joins_along_last(node):
            continue
        halves = [_half(part) for part in node.args[0]]
        if len(halves) != 2 or not (calls(halves[0], torch.sin, torch.cos) and calls(halves[1], torch.sin, torch.cos)):
            continue
        angles = halves[0].args[0]
        if halves[0].target is halves[1].target or halves[1].args[0] is not angles or not calls(angles, torch.mul):
            continue
        factors = _factors(*angles.args)
        if factors is None or value(node).dtype != torch.float32:
            continue
        cast = sole_user(node)
        last = cast if cast is not None and calls(cast, cast_like) else node
        arguments = (*factors, halves[0].target is torch.sin, value(last).dtype)
        if has_impl(sinusoids, *metas(arguments)):
            exchanged.update(part.x for each in node.args[0] if each not in halves and (part := part_of(each)))
            replace(last, insert_as(last, value(last), sinusoids, *arguments))
            fused += 1
    return fused


def _half(node: Any) -> Any:
    """``node`` itself, or what it is a half of was put together from."""
    part = part_of(node)
    if part is None or not part.is_of_last or not calls(part.x, torch.cat) or not joins_along_last(part.x):
        return node
    start = 0
    for source in part.x.args[0]:
        stop = start + shape(source)[-1]
        if (part.start, part.stop) == (start, stop):
            return source
        start = stop
    return node


def _factors(x: Any, other: Any) -> tuple[Node, Node] | None:
    """The numbers [N, 1], without a cast to float32, and the frequencies [1, H] or [H], whichever came first."""
    for numbers, frequencies in ((x, other), (other, x)):
        if not (isinstance(numbers, Node) and isinstance(frequencies, Node) and len(shape(frequencies)) in (1, 2)):
            continue
        if (
            len(shape(numbers)) == 2
            and shape(numbers)[1] == 1
            and "constant" in frequencies.meta
            and value(frequencies).dtype == torch.float32
        ):
            widened = calls(numbers, cast_like) and value(numbers).dtype == torch.float32
            return (numbers.args[0] if widened else numbers), frequencies
    return None
