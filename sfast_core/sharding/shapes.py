"""What operations that compute nothing make of rows: views, parts, and tensors that are joined."""

from __future__ import annotations

import math
from typing import Any

from torch.fx import Node

from ..rewrite.graph import is_tensor, named, shape, value
from .local import Held, Local, Rule, none_empty
from .rows import Rows, Shard, Stripes


def reshape(node: Node, held: Held) -> Local | None:
    """A view in which the rows are still a dimension of their own."""
    x, size = node.args[0], shape(node)
    shard = held(x)
    if shard is None:
        return None
    rows, before = shape(x)[shard.dim], math.prod(shape(x)[: shard.dim])
    dims = [dim for dim in range(len(size)) if size[dim] == rows and math.prod(size[:dim]) == before]
    if not dims:
        return None
    (dim, *_) = dims
    return Local(Shard(dim, shard.rows), {x: shard}, lambda device: (x, _with(size, dim, shard.rows.count(device))))


def permute(node: Node, held: Held) -> Local | None:
    x: Any = node.args[0]
    shard = held(x)
    dims = [dim % value(x).dim() for dim in node.args[1]]
    return None if shard is None else Local(Shard(dims.index(shard.dim), shard.rows), {x: shard})


def expand(node: Node, held: Held) -> Local | None:
    """Other dimensions become longer, or are put in front."""
    x: Any = node.args[0]
    if (shard := held(x)) is None or node.kwargs:
        return None
    size, dim = shape(node), shard.dim + value(node).dim() - value(x).dim()
    return Local(Shard(dim, shard.rows), {x: shard}, lambda device: (x, _with(size, dim, shard.rows.count(device))))


def repeat(node: Node, held: Held) -> Local | None:
    """Other dimensions are repeated, or put in front; the rows must not be."""
    x: Any = node.args[0]
    shard = held(x)
    if shard is None or shape(node)[(dim := shard.dim + value(node).dim() - value(x).dim())] != shape(x)[shard.dim]:
        return None
    return Local(Shard(dim, shard.rows), {x: shard})


def split(node: Node, held: Held) -> Local | None:
    """Parts along another dimension."""
    x: Any = node.args[0] if node.args else None
    if not isinstance(x, Node) or (shard := held(x)) is None:
        return None
    dim = node.kwargs.get("dim", node.args[2] if len(node.args) > 2 else 0)
    return None if not isinstance(dim, int) or dim % value(x).dim() == shard.dim else Local(shard, {x: shard})


def unbind(node: Node, held: Held) -> Local | None:
    """Parts along another dimension, which is gone in each."""
    x: Any = node.args[0] if node.args else None
    if not isinstance(x, Node) or (shard := held(x)) is None:
        return None
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0)
    dim = dim % value(x).dim()
    return None if dim == shard.dim else Local(Shard(shard.dim - (dim < shard.dim), shard.rows), {x: shard})


def element(node: Node, held: Held) -> Local | None:
    """One of several results, or what an index of slices, numbers and new dimensions takes."""
    x, index = node.args
    if not isinstance(x, Node) or (shard := held(x)) is None:
        return None
    if not is_tensor(x):
        return Local(shard, {x: shard})
    items = _spelled_out(index, value(x).dim())
    if items is None:
        return None
    dim = out = at = 0
    own: slice = slice(None)
    for place, item in enumerate(items):
        if item is None:
            out += 1
        elif isinstance(item, int):
            if dim == shard.dim:
                return None
            dim += 1
        else:
            if dim == shard.dim:
                own, at, found = item, place, out
            dim, out = dim + 1, out + 1
    begin, end, step = own.indices(shape(x)[shard.dim])
    if isinstance(shard.rows, Stripes):
        all_of_them = (begin, end, step) == (0, shard.rows.size, 1)
        return Local(Shard(found, shard.rows), {x: shard}) if all_of_them else None
    rows, places = shard.rows.within(begin, max(begin, end))
    if step != 1 or not none_empty(rows):
        return None
    whole = rows.size == shard.rows.size
    spelled = [tuple(_with(items, at, slice(None) if whole else slice(*own_rows))) for own_rows in places]
    return Local(Shard(found, rows), {x: shard}, lambda device: (x, spelled[device]))


def placed(node: Node, held: Held) -> Local | None:
    """A tensor with another in the place of a part of it, which is all rows."""
    x, index, put = node.args if len(node.args) == 3 else (None, None, None)
    if not isinstance(x, Node) or not isinstance(put, Node):
        return None
    items, rank = _spelled_out(index, value(x).dim()), value(put).dim()
    shards = [shard for each in (x, put) if (shard := held(each)) is not None]
    if items is None or None in items or not shards:
        return None
    places = [place for place, item in enumerate(items) if isinstance(item, slice)]
    own = {place: number - len(places) + rank for number, place in enumerate(places)}  # its dimensions: from the last
    shard = held(x) or Shard(next((place for place in places if own[place] == shards[0].dim), -1), shards[0].rows)
    if shard.dim not in own or items[shard.dim] != slice(None) or shard.rows.size != shape(x)[shard.dim]:
        return None
    wants = {x: shard}
    if own[shard.dim] >= 0 and shape(put)[own[shard.dim]] != 1:
        wants[put] = Shard(own[shard.dim], shard.rows)
    return Local(shard, wants)


def cat(node: Node, held: Held) -> Local | None:
    """Along another dimension than that of rows; or along that: a device joins what it has of each."""
    call = named(node)
    tensors, rank = list(call.tensors), value(node).dim()
    if not isinstance(call.dim, int) or any(value(each).dim() != rank for each in tensors):
        return None
    dim = call.dim % rank
    shards = [held(each) for each in tensors]
    if any(shard is not None and shard.dim == dim for shard in shards):
        if any(shard is not None and isinstance(shard.rows, Stripes) for shard in shards):
            return None
        devices = next(len(shard.rows.ranges) for shard in shards if shard is not None)
        pairs = zip(tensors, shards, strict=True)
        rows = [
            shard.rows if shard is not None and shard.dim == dim else Rows.even(shape(each)[dim], devices)
            for each, shard in pairs
        ]
        wants = {each: Shard(dim, own) for each, own in zip(tensors, rows, strict=True)}
        own = [
            [each for each, mine in zip(tensors, rows, strict=True) if mine.count(device)] for device in range(devices)
        ]
        return Local(Shard(dim, Rows.joined(rows)), wants, lambda device: (own[device], dim))
    lead = next((shard for shard in shards if shard is not None), None)
    return None if lead is None else Local(lead, {each: lead for each in tensors})


def stack(node: Node, held: Held) -> Local | None:
    tensors: Any = node.args[0] if node.args else None
    if (
        not isinstance(tensors, (tuple, list))
        or (lead := next((shard for each in tensors if (shard := held(each)) is not None), None)) is None
    ):
        return None
    dim = node.kwargs.get("dim", node.args[1] if len(node.args) > 1 else 0) % value(node).dim()
    return Local(Shard(lead.dim + (dim <= lead.dim), lead.rows), {each: lead for each in tensors})


def as_pairs(node: Node, held: Held) -> Local | None:
    """Complex numbers as pairs, and pairs as complex numbers."""
    x: Any = node.args[0]
    shard = held(x)
    return None if shard is None or shard.dim >= min(value(x).dim(), value(node).dim()) else Local(shard, {x: shard})


def pad(node: Node, held: Held) -> Local | None:
    """Along other dimensions."""
    x, sizes = node.args[0], node.args[1] if len(node.args) > 1 else node.kwargs.get("pad")
    if not isinstance(x, Node) or (shard := held(x)) is None or not isinstance(sizes, (tuple, list)):
        return None
    return Local(shard, {x: shard}) if shard.dim < value(x).dim() - len(sizes) // 2 else None


#: Their meta values are those of their functions: as their arguments lie.
VIEWS = "reshape permute expand chunk split unbind getitem element view_as_real view_as_complex narrow".split()
RULES: dict[str, Rule] = {
    "reshape": reshape,
    "permute": permute,
    "expand": expand,
    "repeat": repeat,
    **dict.fromkeys("chunk split split_with_sizes tensor_split".split(), split),
    "unbind": unbind,
    **dict.fromkeys("getitem element".split(), element),
    "setitem": placed,
    "cat": cat,
    "stack": stack,
    **dict.fromkeys("view_as_real view_as_complex".split(), as_pairs),
    "pad": pad,
}


def _with(items: Any, place: int, item: Any) -> tuple[Any, ...]:
    return (*items[:place], item, *items[place + 1 :])


def _spelled_out(index: Any, rank: int) -> list[Any] | None:
    """An index with an item for each dimension, and None where there is a new one; None where it is of another kind."""
    items = list(index) if isinstance(index, tuple) else [index]
    if not all(
        item is None or item is Ellipsis or type(item) is int or (isinstance(item, slice) and _plain(item))
        for item in items
    ):
        return None
    missing = [slice(None)] * (rank - sum(item is not None and item is not Ellipsis for item in items))
    place = next((place for place, item in enumerate(items) if item is Ellipsis), None)
    return items + missing if place is None else items[:place] + missing + items[place + 1 :]


def _plain(item: slice) -> bool:
    return all(each is None or type(each) is int for each in (item.start, item.stop, item.step))
