"""GELU's approximation by tanh, written out as in transformers' T5 and GPT-2: five passes over a wide tensor."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import torch
from torch.fx import Graph, Node

from ..graph import alike, called, calls, insert_as, replace, sole_user, value
from ..patterns import gelu

_CUBE, _ROOT = 0.044715, math.sqrt(2 / math.pi)


def recover_gelu(graph: Graph) -> int:
    """``0.5 * x * (1 + tanh(sqrt(2 / pi) * (x + 0.044715 * x ** 3)))``, its factors in any order."""
    found = 0
    for node in [node for node in graph.nodes if called(node, "tanh")]:
        x = _argument(node)
        plus_one = sole_user(node)
        if (
            x is None
            or not calls(plus_one, torch.add)
            or not any(type(arg) in (int, float) and arg == 1 for arg in plus_one.args)
        ):
            continue
        last = _halved(plus_one, x)
        if last is not None and alike(last, x):
            replace(last, insert_as(last, value(last), gelu, x, "tanh"))
            found += 1
    return found


def _argument(tanh: Node) -> Node | None:
    """The x of which ``tanh``'s argument is made."""
    scaled: Any = tanh.args[0] if len(tanh.args) == 1 else None
    total = _times(scaled, _ROOT)
    if not calls(total, torch.add) or len(total.args) != 2:
        return None
    for x, other in (total.args, total.args[::-1]):
        cube = _times(other, _CUBE)
        if called(cube, "pow", "__pow__") and cube.args[0] is x and cube.args[1] == 3 and not cube.kwargs:
            return x
    return None


def _times(node: Any, number: float) -> Any:
    """What ``node`` multiplies with about this number, or None."""
    for given, factor in _factors(node):
        if isinstance(factor, (int, float)) and math.isclose(factor, number, rel_tol=1e-6):
            return given
    return None


def _factors(node: Any) -> Iterator[tuple[Any, Any]]:
    if calls(node, torch.mul) and len(node.args) == 2:
        yield node.args
        yield node.args[::-1]


def _halved(sum_: Node, x: Node) -> Node | None:
    """The product of half of x and a sum that nobody else reads."""
    product = sole_user(sum_)
    for other, given in _factors(product):
        if given is not sum_:
            continue
        if other is x:
            return half if (half := sole_user(product)) is not None and _times(half, 0.5) is product else None
        return product if _times(other, 0.5) is x else None
    return None
