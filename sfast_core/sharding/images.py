"""Rules for operations on images that are divided into stripes of rows."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Node

from ..rewrite.graph import named, shape, value
from .local import Held, Local, Rule
from .rows import Rows, Shard, Stripes
from .rules import RULES as OF_ROWS
from .shapes import reshape as reshape_rows

_HEIGHT = 2


def convolution(node: Node, held: Held) -> Local | None:
    """A convolution that keeps the picture's size; of the neighbours' rows as many go wrong as its kernel reaches."""
    call = named(node)
    shard, kernel = held(call.input), shape(call.weight)[2:]
    if shard is None or shard.dim != _HEIGHT or not isinstance(shard.rows, Stripes) or len(kernel) != 2:
        return None
    (stride, padding, dilation) = (_first(each) for each in (call.stride, call.padding, call.dilation))
    if stride != 1 or not isinstance(padding, int) or 2 * padding != dilation * (kernel[0] - 1):
        return None
    return Local(shard, {call.input: shard}, spoils=padding)


def enlarged(node: Node, held: Held, spoilt: Callable[[Node], int]) -> Local | None:
    """Enlarging to the nearest pixel by a whole number. The neighbours' rows that are wrong already are left out."""
    call = named(node)
    x = call.input
    shard = held(x)
    if shard is None or shard.dim != _HEIGHT or not isinstance(shard.rows, Stripes) or value(x).dim() != 4:
        return None
    times, rest = divmod(shape(node)[_HEIGHT], shape(x)[_HEIGHT])
    if rest or not str(call.mode).startswith("nearest") or call.recompute_scale_factor:
        return None
    kept = Stripes.around(shard.rows.own, shard.rows.halo - spoilt(x))
    rows = kept.scaled(times)
    assert rows is not None
    factor = None if call.size is not None else call.scale_factor

    def args(device: int) -> tuple[Any, ...]:
        size = None if call.size is None else (rows.count(device), shape(node)[3])
        return (x, size, factor, *node.args[3:])

    return Local(Shard(_HEIGHT, rows), {x: Shard(_HEIGHT, kept)}, args)


def group_norm(node: Node, held: Held) -> Local | None:
    """A GroupNorm of one image, in float32: :mod:`.moments` says how."""
    call = named(node)
    if value(node).dtype is torch.float64:
        return None
    shard = held(call.input)
    whole = shard is None or shard.dim < 2 or shape(call.input)[0] != 1 or not isinstance(shard.rows, Stripes)
    return None if whole or shard is None else Local(shard, {call.input: shard})


def reshape(node: Node, held: Held) -> Local | None:
    """A reshape between an image's rows and its pixels in one dimension."""
    found = reshape_rows(node, held)
    x: Any = node.args[0]
    shard = held(x)
    if found is not None or shard is None or not isinstance(shard.rows, Stripes):
        return found
    before, sizes = math.prod(shape(x)[: shard.dim]), shape(node)
    dim = next((at for at, size in enumerate(sizes) if math.prod(sizes[:at]) == before and size > 1), None)
    rows = None if dim is None else shard.rows.scaled(sizes[dim], shape(x)[shard.dim])
    if dim is None or rows is None or rows.size != sizes[dim]:
        return None
    place = dim
    return Local(
        Shard(place, rows), {x: shard}, lambda device: (x, (*sizes[:place], rows.count(device), *sizes[place + 1 :]))
    )


#: The rules for tokens, and these. A cut into stripes begins at a convolution.
RULES: dict[str, Rule] = {**OF_ROWS, "conv2d": convolution, "group_norm": group_norm, "reshape": reshape}


def begins(node: Node, name: str, devices: int, halo: int) -> Local | None:
    """A cut begins at a convolution of one whole image that has enough rows for each device."""
    if name != "conv2d" or not isinstance(named(node).input, Node) or value(named(node).input).dim() != 4:
        return None
    x = named(node).input
    height = shape(x)[_HEIGHT]
    if shape(x)[0] != 1 or height < 2 * devices:
        return None
    own = tuple(ranges[0] for ranges in Rows.even(height, devices).ranges)
    shard = Shard(_HEIGHT, Stripes.around(own, halo))
    return convolution(node, lambda each: shard if each is x else None)


def _first(number: Any) -> Any:
    return number[0] if isinstance(number, (tuple, list)) else number
