"""Quantising written out in PyTorch's operators (torchao's dynamic kinds) becomes one op where a kernel computes it.

A dozen operators make a row's scale and its numbers of 8 bits, each of which reads or writes the whole input. Products
that read one input share them by now.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.quantise import quantise
from ..graph import called, calls, insert, insert_as, insert_item, metas, replace, replace_reshaped, shape, value
from ..patterns import HasImpl

_FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
_RANGE = 127.5  #: of int8, to either side
_LEAST = torch.finfo(torch.float32).eps


def recover_quantise(graph: Graph, has_impl: HasImpl) -> int:
    """Each such place. Returns how many there were."""
    found = sum(
        [_recover(node, has_impl) for node in list(graph.nodes) if calls(node, cast_like) and value(node).itemsize == 1]
    )
    return found


def _recover(node: Node, has_impl: HasImpl) -> bool:
    read = _int8(node) if value(node).dtype == torch.int8 else _float8(node) if value(node).dtype in _FLOAT8 else None
    if read is None:
        return False
    x, scale, by_row = read
    given = None if by_row else scale
    arguments = x, value(node).dtype, given, 0, None, None, None, value(node).dtype == torch.int8
    if not has_impl(quantise, *metas(arguments)):
        return False
    before = scale if by_row else node
    both = insert_as(before, (torch.empty_like(value(node)), torch.empty_like(value(scale))), quantise, *arguments)
    replace(node, insert_item(before, both, 0))
    if by_row:
        replace_reshaped(scale, insert_item(scale, both, 1), scale)
    else:
        _shorten(scale)
    return True


def _float8(node: Node) -> tuple[Node, Node, bool] | None:
    """What is quantised, the scale, and whether its rows make that: ``clamp(x.float() / scale, -largest, largest)``."""
    largest = torch.finfo(value(node).dtype).max
    quotient = _bounded(node.args[0], -largest, largest)
    if not called(quotient, "div") or len(quotient.args) != 2 or quotient.kwargs:
        return None
    x, scale = quotient.args
    if not isinstance(scale, Node) or value(scale).dtype != torch.float32 or not isinstance(x, Node):
        return None
    x = x.args[0] if calls(x, cast_like) and value(x).dtype == torch.float32 else x
    if value(scale).numel() == 1 and value(x).numel() > 1:
        return x, scale, False
    of = _cast(scale)
    if not called(of, "div") or of.args[1:] != (largest,) or of.kwargs or value(of).dtype != value(x).dtype:
        return None
    sizes = of.args[0].args[0] if _is_amax(of.args[0], x) else None
    return (x, scale, True) if called(sizes, "abs") and sizes.args[0] is x else None


def _int8(node: Node) -> tuple[Node, Node, bool] | None:
    """What is quantised, the scale, and whether that is made of its rows, as half their range of 255 steps:
    ``clamp(round(x * (1 / scale)) + 0, -128, 127)``.
    """
    total = _bounded(node.args[0], -128, 127)
    if called(total, "add"):
        rounded, zero = total.args
        total = rounded if _is_zero(zero) else None
    if (
        not called(total, "round")
        or len(total.args) != 1
        or total.kwargs
        or not called(product := total.args[0], "mul")
    ):
        return None
    for x, inverse in (product.args, product.args[::-1]):
        if called(inverse, "reciprocal"):
            scale: Any = inverse.args[0]
            step = _cast(scale)
            x = x.args[0] if calls(x, cast_like) and value(x).dtype == torch.float32 else x
            return (x, scale, True) if value(scale).dtype == torch.float32 and _is_half_range(step, x) else None
    return None


def _is_half_range(step: Any, x: Any) -> bool:
    """Whether a step is ``max(|x|) / 127.5`` of each row, at least float32's epsilon."""
    if (
        not called(step, "clamp")
        or step.args[1:] != (_LEAST,)
        or step.kwargs
        or not called(half := step.args[0], "div")
        or half.args[1:] != (_RANGE,)
    ):
        return False
    if not called(both := half.args[0], "maximum"):
        return False
    negated, positive = both.args
    low = negated.args[0] if called(negated, "neg") else None
    return _above_zero(positive, "maximum", "amax", x) and _above_zero(low, "minimum", "amin", x)


def _above_zero(node: Any, than_zero: str, extreme: str, x: Any) -> bool:
    """Whether this is the extreme of each row, or zero where that is on the other side of it."""
    if not called(node, than_zero):
        return False
    found, zero = node.args
    return _is_zero(zero) and called(found, extreme) and found.args[0] is x and _over_rows(found, x)


def _is_amax(node: Any, of: Any) -> bool:
    return called(node, "amax") and _over_rows(node, of)


def _over_rows(node: Any, x: Any) -> bool:
    """Whether a reduction is over the last dimension, which it keeps."""
    return (
        shape(node) == (*shape(x)[:-1], 1) and list(node.args[1]) in ([-1], [value(x).dim() - 1]) and shape(x)[-1] > 1
    )


def _bounded(node: Any, low: float, high: float) -> Node | None:
    if called(node, "clamp") and tuple(node.args[1:]) == (low, high) and not node.kwargs:
        inner: Node = node.args[0]
        return inner
    return None


def _cast(node: Any) -> Any:
    """What a node casts."""
    return node.args[0] if calls(node, cast_like) or called(node, "_to_copy.default") else node


def _is_zero(node: Any) -> bool:
    """Whether a node makes zeros."""
    node = _cast(node)
    zeros = any(called(node, name) for name in ("zeros_like", "zeros_like.default"))
    return zeros or any(
        called(node, name) and tuple(node.args[1:2]) == (0,) for name in ("full_like", "full_like.default")
    )


def _shorten(scale: Node) -> None:
    """The largest number of a whole tensor in one pass instead of two: ``max(abs(x))`` is a norm."""
    largest: Any = _cast(scale)
    largest = largest.args[0] if called(largest, "div") else None
    if called(largest, "amax") and called(sizes := largest.args[0], "abs") and value(largest).numel() == 1:
        x = sizes.args[0]
        replace(largest, insert(largest, torch.linalg.vector_norm, x, math.inf, list(range(value(x).dim())), True))
