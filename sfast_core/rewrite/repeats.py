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
    """What a node repeats, how often each element, and along which dimension: by ``repeat_interleave``, or by
    ``expand`` or ``repeat`` along a dimension of its own, which is none any more behind that.
    """
    call = arguments(node, "x repeats dim") if called(node, "repeat_interleave") else None
    if call is not None and isinstance(call.x, Node) and type(call.repeats) is int and type(call.dim) is int:
        return call.x, call.repeats, call.dim % value(call.x).dim()
    spread: Any = node.args[0] if calls(node, torch.reshape) else None
    if not called(spread, "expand", "repeat") or not is_tensor(spread) or not is_tensor(spread.args[0]):
        return None
    one, many = shape(spread.args[0]), shape(spread)
    dims = [dim for dim, times in enumerate(many) if one[dim : dim + 1] != (times,)]
    if len(one) != len(many) or len(dims) != 1 or dims[0] == 0 or one[dims[0]] != 1:
        return None
    dim, times = dims[0] - 1, many[dims[0]]
    if shape(node) != (*many[:dim], many[dim] * times, *many[dim + 2 :]):
        return None
    return reshaped(node, spread.args[0], (*one[: dim + 1], *one[dim + 2 :])), times, dim


class TokenRows(NamedTuple):
    """``rows``, [B, P, C], of which every ``part`` tokens have one, and the last also all that are left."""

    rows: Node
    part: int


def token_rows(node: Any) -> TokenRows | None:
    """What a node of tokens, [B, L, C], repeats for them, as ``of_each_token``, or as it is told of one by
    :func:`repeated_along`, from whose result tokens at the end may be cut off; None where it repeats nothing.
    """
    if not is_tensor(node) or value(node).dim() != 3:
        return None
    if calls(node, of_each_token):
        call = named(node)
        return TokenRows(call.rows, call.part)
    cut = part_of(node)
    repeated = repeated_along(cut.x if cut is not None and (cut.dim, cut.start) == (1, 0) else node)
    return TokenRows(*repeated[:2]) if repeated is not None and repeated[2] == 1 else None


def by_part(*nodes: Any) -> tuple[tuple[Any, ...], int]:
    """The rows of an op's modulations, and how many tokens have one: what is repeated, where that is done alike, and
    else ``nodes`` and 1.
    """
    found = [token_rows(node) for node in nodes]
    ways = {(shape(each.rows)[1], each.part) for each in found if each is not None}
    others = [node for node, each in zip(nodes, found, strict=True) if node is not None and each is None]
    if len(ways) != 1 or any(shape(node)[1] != 1 for node in others):
        return nodes, 1
    rows = (node if each is None else each.rows for node, each in zip(nodes, found, strict=True))
    return tuple(rows), ways.pop()[1]
