"""What models repeat along a dimension, and the rows of channels that they repeat for tokens, which ops take as they
are.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch.fx import Node

from ..ops.token_rows import of_each_token
from .graph import arguments, called, calls, is_tensor, named, reshaped, shape, value
from .parts import part_of


def repeated_along(node: Node) -> tuple[Node, int, int] | None:
    """What a node repeats, how often each element, and along which dimension."""
    call = arguments(node, "x repeats dim") if called(node, "repeat_interleave") else None
    if call is None or not isinstance(call.x, Node) or type(call.repeats) is not int or type(call.dim) is not int:
        return None
    return call.x, call.repeats, call.dim % value(call.x).dim()


class TokenRows(NamedTuple):
    """``rows``, seen as ``size``, of which every ``part`` tokens have one, and the last also all that are left."""

    rows: Node
    size: tuple[int, ...]  #: images, rows, channels
    part: int


def token_rows(node: Any) -> TokenRows | None:
    """What a node of tokens, [B, L, C], repeats for them, as ``of_each_token``, by ``repeat_interleave``, from whose
    result tokens at the end may be cut off, or by ``expand``; None where it repeats nothing.
    """
    if not is_tensor(node) or value(node).dim() != 3:
        return None
    if calls(node, of_each_token):
        call = named(node)
        return TokenRows(call.rows, shape(call.rows), call.part)
    cut = part_of(node)
    repeated = repeated_along(cut.x if cut is not None and (cut.dim, cut.start) == (1, 0) else node)
    if repeated is not None:
        rows, part, dim = repeated
        return TokenRows(rows, shape(rows), part) if dim == 1 else None
    expanded: Any = node.args[0] if calls(node, torch.reshape) else None
    if not called(expanded, "expand") or not is_tensor(expanded.args[0]) or value(expanded).dim() != 4:
        return None
    images, parts, part, channels = shape(expanded)
    is_of_parts = shape(expanded.args[0]) == (images, parts, 1, channels)
    if not is_of_parts or shape(node) != (images, parts * part, channels):
        return None
    return TokenRows(expanded.args[0], (images, parts, channels), part)


def by_part(*nodes: Any) -> tuple[tuple[Any, ...], int]:
    """The rows of an op's modulations, and how many tokens have one: what is repeated, where that is done alike, and
    else ``nodes`` and 1.
    """
    found = [token_rows(node) for node in nodes]
    ways = {(each.size[1], each.part) for each in found if each is not None}
    others = [node for node, each in zip(nodes, found, strict=True) if node is not None and each is None]
    if len(ways) != 1 or any(shape(node)[1] != 1 for node in others):
        return nodes, 1
    rows = (
        node if each is None else reshaped(node, each.rows, each.size) for node, each in zip(nodes, found, strict=True)
    )
    return tuple(rows), ways.pop()[1]
