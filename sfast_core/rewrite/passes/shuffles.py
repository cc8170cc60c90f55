"""Channels that become pixels or frames, and back, in one copy that leaves a video's channels innermost.

``x.view(b, 2, c, t, h, w).permute(...).reshape(...)`` gives what lies in the order of its dimensions, and the next
convolution would turn it.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..graph import (
    alike,
    called,
    calls,
    calls_of,
    drop_unused,
    insert,
    insert_as,
    is_tensor,
    named,
    replace,
    shape,
    sole_user,
    value,
)
from ..repeats import repeated_along
from ..videos import has_videos, is_video, padding_of


def shuffles_innermost(graph: Graph) -> int:
    """Each copy of that kind in a model that has videos."""
    if not has_videos(graph):
        return 0
    changed = sum([_sum(node) for node in calls_of(graph, torch.add)])
    changed += sum([_stack(node) for node in calls_of(graph, torch.stack)])
    changed += sum(
        [_repetition(node) for node in list(graph.nodes) if called(node, "repeat_interleave") and is_video(node)]
    )
    changed += sum([_reshape(node) for node in calls_of(graph, torch.reshape)])
    changed += sum([_zeros_around(node) for node in calls_of(graph, F.conv3d)])
    return changed


def _sum(node: Node) -> int:
    """A sum of two tensors that are put into another order in the same way, in a copy each: the sum is, in one; so the
    convolution that made one of them may add the other. Of two that are joined of such the parts are summed.
    """
    left, right = node.args if len(node.args) == 2 else (None, None)
    if not alike(left, node) or not alike(right, node) or left is right:
        return 0
    if (way := _same_way(node, left, right)) is not None:
        total = insert(node, torch.add, way[-1][0].args[0], way[-1][1].args[0])
        for step, _ in reversed(way):
            total = insert(node, step.target, total, step.args[1])
        replace(node, total)
        return 1
    if not _joined_alike(node, left, right):
        return 0
    pairs = list(zip(named(left).tensors, named(right).tensors, strict=True))
    if not any(_same_way(left, *pair, right) for pair in pairs):
        return 0
    sums = [insert(node, torch.add, *pair) for pair in pairs]
    joined = insert(node, torch.cat, sums, named(left).dim)
    replace(node, joined)
    drop_unused(joined.graph)  # who else reads a part is asked next
    return 1 + sum([_sum(each) for each in sums])


def _same_way(reader: Node, left: Node, right: Node, other: Node | None = None) -> list[tuple[Node, Node]] | None:
    """The same steps by which two tensors of one shape came to be what ``reader`` (of the right ``other``) alone reads,
    the last first; None where no step copies.
    """
    way: list[tuple[Node, Node]] = []
    readers = reader, other or reader
    while (
        calls(left, torch.reshape, torch.permute)
        and calls(right, left.target)
        and left.args[1:] == right.args[1:]
        and (sole_user(left), sole_user(right)) == readers
        and alike(left.args[0], right.args[0])
    ):
        way.append((left, right))
        readers = left, right
        left, right = left.args[0], right.args[0]
    return way if any(_copies(step) for pair in way for step in pair) else None


def _copies(step: Node) -> bool:
    """Whether a reshape has to."""
    try:
        return calls(step, torch.reshape) and value(step.args[0]).view(shape(step)) is None
    except RuntimeError:
        return True


def _joined_alike(reader: Node, left: Any, right: Any) -> bool:
    """Whether both join as many tensors of the same shapes along the same dimension, for ``reader`` alone."""
    if not calls(left, torch.cat) or not calls(right, torch.cat) or named(left).dim != named(right).dim:
        return False
    mine, its = named(left).tensors, named(right).tensors
    alone = sole_user(left) is reader and sole_user(right) is reader
    return alone and len(mine) == len(its) and all(alike(a, b) for a, b in zip(mine, its, strict=True))


def _stack(node: Node) -> bool:
    """All parts of a tensor along one dimension, put beside one another along another: a permutation."""
    parts = node.args[0]
    dim = node.args[1] if len(node.args) > 1 else 0
    found = [_part(part) for part in parts] if isinstance(parts, (tuple, list)) and type(dim) is int else [None]
    if not isinstance(dim, int) or found[0] is None:
        return False
    whole, (place, _) = found[0]
    if found != [(whole, (place, index)) for index in range(shape(whole)[place])]:
        return False
    order = [each for each in range(value(whole).dim()) if each != place]
    order.insert(dim % value(node).dim(), place)
    replace(node, insert(node, torch.permute, whole, tuple(order)))
    return True


def _part(node: Any) -> tuple[Node, tuple[int, int]] | None:
    """The tensor of which a node is one part, along which dimension and which."""
    if not called(node, "__getitem__", "getitem", "select") or node.kwargs or len(node.args) != 2:
        return None
    whole, index = node.args
    if not is_tensor(whole) or not isinstance(index, tuple):
        return None
    places = [place for place, item in enumerate(index) if item != slice(None)]
    if len(places) != 1 or type(index[places[0]]) is not int:
        return None
    return whole, (places[0], index[places[0]] % shape(whole)[places[0]])


def _repetition(node: Node) -> bool:
    """Each channel several times."""
    x, times, dim = repeated_along(node) or (None, 0, 0)
    if x is None or dim != 1 or not is_video(x):
        return False
    batch, channels, *space = shape(x)
    turned = insert(node, torch.permute, x, (0, 2, 3, 4, 1))
    parted = insert(node, torch.reshape, turned, (batch, *space, channels, 1))
    spread = insert(node, torch.Tensor.expand, parted, (batch, *space, channels, times))
    joined = insert(node, torch.reshape, spread, (batch, *space, channels * times))
    replace(node, insert(node, torch.permute, joined, (0, 4, 1, 2, 3)))
    return True


def _reshape(node: Node) -> bool:
    """A reshape behind a permutation of more dimensions to an image or a video that not only the caller reads."""
    turned: Any = node.args[0]
    if not calls(turned, torch.permute) or value(node).dim() not in (4, 5) or value(turned).dim() <= value(node).dim():
        return False
    groups = _groups(shape(turned), shape(node))
    if groups is None or all(user.op == "output" for user in node.users) or all(len(group) == 1 for group in groups):
        return False
    order = (groups[0], *groups[2:], groups[1])
    dims: Any = named(turned).dims
    rank = value(node).dim()
    innermost = insert(node, torch.permute, turned.args[0], tuple(dims[place] for group in order for place in group))
    size = (shape(node)[0], *shape(node)[2:], shape(node)[1])
    copied = insert_as(node, value(node).new_empty(size), torch.reshape, innermost, size)
    replace(node, insert(node, torch.permute, copied, (0, rank - 1, *range(1, rank - 1))))
    return True


def _groups(sizes: tuple[int, ...], joined: tuple[int, ...]) -> list[list[int]] | None:
    """Which neighbouring dimensions of ``sizes`` make each of ``joined``; None where one is made of parts."""
    groups: list[list[int]] = []
    place = 0
    for size in joined:
        group, product = [], 1
        while place < len(sizes) and (product < size or (sizes[place] == 1 and product == size)):
            if sizes[place] == 1 and product == size and len(sizes) - place <= len(joined) - len(groups) - 1:
                break
            group.append(place)
            product *= sizes[place]
            place += 1
        if product != size:
            return None
        groups.append(group)
    return groups if place == len(sizes) else None


def _zeros_around(node: Node) -> bool:
    """Zeros around a video are the convolution's own padding, and frames of zeros in front are what leads it."""
    call = named(node)
    pad: Any = call.input
    padding = padding_of(pad)
    if padding is None or len(pad.users) != 1 or isinstance(call.padding, str):
        return False
    if padding.mode != "constant" or padding.value not in (None, 0, 0.0):
        return False
    own = call.padding if isinstance(call.padding, (tuple, list)) else (call.padding,) * 3
    front, back, top, bottom, left, right = padding.sizes
    if left != right or top != bottom or own[0] != 0 or back:
        return False
    x: Any = pad.args[0]
    if front:
        first = next(each for each in node.graph.nodes if each.op != "placeholder")
        zero = insert(first, torch.zeros, (1, 1, 1, 1, 1), dtype=value(x).dtype, device=x.meta["device"])
        zero.meta.update(val=value(zero).to("meta"), device=x.meta["device"])
        lead = insert(first, torch.Tensor.expand, zero, (*shape(x)[:2], front, *shape(x)[3:]))
        x = insert(pad, torch.cat, [lead, x], 2)
    node.args = (x, *node.args[1:4], (0, own[1] + top, own[2] + left), *node.args[5:])
    return True
