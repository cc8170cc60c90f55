"""Parts of tensors along one dimension, in whatever way a node takes them, and what is joined of such."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ..capture.functional import element
from .graph import arguments, called, calls, named, shape, value

_SPLITS = ("split", "split_with_sizes")


class Part(NamedTuple):
    """Elements ``start`` to ``stop`` of ``x`` along one dimension, and all along the others."""

    x: Node
    dim: int
    start: int
    stop: int

    @property
    def is_of_last(self) -> bool:
        """Whether it is a part of the last dimension."""
        return self.dim == value(self.x).dim() - 1


def part_of(node: Any) -> Part | None:
    """The part of a tensor that a node takes: by slices, by ``narrow``, or of what splits the tensor into parts."""
    if calls(node, torch.narrow):
        call = named(node)
        return Part(call.input, call.dim % value(node).dim(), call.start, call.start + call.length)
    if calls(node, element):
        split, index = split_of(node.args[0]), node.args[1]
        return split and Part(split.x, split.dim, sum(split.sizes[:index]), sum(split.sizes[: index + 1]))
    if called(node, "__getitem__", "getitem") and len(node.args) == 2 and not node.kwargs:
        x, index = node.args
        return part_at(x, index) if isinstance(x, Node) else None
    return None


def part_at(x: Node, index: Any) -> Part | None:
    """The part of a tensor that an index of slices names; None for any other index."""
    if not isinstance(index, (tuple, slice)):
        return None
    rank, items = value(x).dim(), list(index) if isinstance(index, tuple) else [index]
    if items.count(Ellipsis) == 1:
        at = items.index(Ellipsis)
        items[at : at + 1] = [slice(None)] * (rank - len(items) + 1)
    taken = [dim for dim, item in enumerate(items) if item != slice(None)]
    if len(taken) != 1 or len(items) > rank or not isinstance(items[taken[0]], slice):
        return None
    found = items[taken[0]]
    if found.step not in (None, 1) or isinstance(found.start, Node) or isinstance(found.stop, Node):
        return None
    start, stop, _ = found.indices(shape(x)[taken[0]])
    return Part(x, taken[0], start, stop)


class Split(NamedTuple):
    """A tensor that is split into parts of these sizes along one dimension."""

    x: Node
    sizes: list[int]
    dim: int


def split_of(node: Any) -> Split | None:
    """What a node splits into parts whose sizes are known: by ``chunk``, or by one size or a list of them."""
    if calls(node, torch.chunk):
        x, parts, dim = vars(named(node)).values()
        return Split(x, _sizes(-(-shape(x)[dim] // parts), shape(x)[dim]), dim % value(x).dim())
    for name in ("split_size_or_sections", "split_size", "split_sizes") if called(node, *_SPLITS) else ():
        if (call := arguments(node, f"x {name} dim", dim=0)) is not None:
            x, size, dim = vars(call).values()
            sizes = _sizes(size, shape(x)[dim]) if type(size) is int else size
            known = isinstance(sizes, (tuple, list)) and all(type(each) is int for each in sizes)
            return Split(x, list(sizes), dim % value(x).dim()) if known else None
    return None


def _sizes(size: int, whole: int) -> list[int]:
    """Of parts of this size, the last as large as what is left."""
    return [min(size, whole - begin) for begin in range(0, whole, size)]


def joined_part(cat: Node) -> Part | None:
    """What a ``torch.cat`` gives that joins neighbouring parts of one tensor again, one behind another."""
    parts: Any = named(cat).tensors
    found = [part_of(part) for part in parts]
    first = found[0] if len(found) > 1 else None
    if first is None or not isinstance(named(cat).dim, int) or first.dim != named(cat).dim % value(cat).dim():
        return None
    stop = first.start
    for part in found:
        if part is None or (part.x, part.dim, part.start) != (first.x, first.dim, stop):
            return None
        stop = part.stop
    return first._replace(stop=stop)
