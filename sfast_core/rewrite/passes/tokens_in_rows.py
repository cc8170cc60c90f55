"""Tokens of a video or an image that a model keeps in the shape of the picture, [B, T, H, W, C], as rows of tokens, [B,
T * H * W, C].

Norms, modulations, gates and linear layers ask for nothing but rows, and the passes that fuse them know tokens of three
dimensions. Where a frame has a modulation of its own, [B, T, 1, 1, C], a frame is what an image is elsewhere: [B * T, H
* W, C].

Runs behind :mod:`.fuse_norm_rope`: heads that are normed and multiplied by cosines look alike.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ..graph import calls, calls_of, insert, insert_as, is_tensor, named, replace, reshaped, shape, value

_ELEMENTWISE = (torch.add, torch.mul, torch.addcmul)
_NORMS = (F.layer_norm, F.rms_norm)
_FEWEST_CHANNELS = 16  #: an image of fewer innermost channels is none of tokens


def tokens_in_rows(graph: Graph) -> int:
    """Each operation on such tokens. Where none of a shape are normed, and modulated by image or by frame, nothing is
    changed.
    """
    splits = _splits(graph)
    changed = 0
    for node in list(graph.nodes) if splits else ():
        if node.op == "call_function" and is_tensor(node) and not node.kwargs:
            changed += _in_rows(node, splits)
    return changed


def _splits(graph: Graph) -> dict[tuple[int, ...], int]:
    """By the tokens' dimensions before the channels: how many of these are an image's, or a frame's, the others being a
    token's.
    """
    found: dict[tuple[int, ...], int] = {}
    normed = {shape(node)[:-1] for node in calls_of(graph, *_NORMS) if len(tuple(named(node).normalized_shape)) == 1}
    for node in graph.nodes:
        if not calls(node, *_ELEMENTWISE) or shape(node)[:-1] not in normed or shape(node)[-1] < _FEWEST_CHANNELS:
            continue
        for arg in node.args if value(node).dim() > 3 else ():
            if isinstance(arg, Node) and (kept := _kept(shape(arg), shape(node))) is not None:
                lead = shape(node)[:-1]
                found[lead] = max(found.get(lead, 0), kept)
    return found


def _kept(row: tuple[int, ...], tokens: tuple[int, ...]) -> int | None:
    """How many dimensions a row for each image or frame keeps of those of the tokens; None where it is none."""
    if len(row) != len(tokens) or row[-1] != tokens[-1] or row == tokens:
        return None
    kept = max((dim + 1 for dim in range(len(row) - 1) if row[dim] != 1), default=0)
    return kept if row[:kept] == tokens[:kept] else None


def _in_rows(node: Node, splits: dict[tuple[int, ...], int]) -> bool:
    lead = shape(node)[:-1]
    if len(lead) < 3 or lead not in splits:
        return False
    kept = splits[lead]
    rows = (math.prod(lead[:kept]), math.prod(lead[kept:]))
    if calls(node, *_ELEMENTWISE):
        given = [_operand(node, arg, kept, rows) for arg in node.args]
        if any(arg is None for arg in given):
            return False
    elif calls(node, F.linear, *_NORMS, cast_like):
        x: Any = node.args[0]
        if shape(x)[:-1] != lead or (calls(node, *_NORMS) and len(tuple(named(node).normalized_shape)) != 1):
            return False
        given = [reshaped(node, x, (*rows, shape(x)[-1])), *node.args[1:]]
    else:
        return False
    val = value(node)
    new = insert_as(node, val.new_empty((*rows, val.shape[-1])), node.target, *given)
    replace(node, insert(node, torch.reshape, new, tuple(val.shape)))
    return True


def _operand(node: Node, arg: Any, kept: int, rows: tuple[int, int]) -> Any:
    """What stands for an operand of ``node``: numbers and vectors as they are, tokens and rows seen as such; None where
    it can't be seen so.
    """
    if not isinstance(arg, Node):
        return arg
    tokens, own = shape(node), shape(arg)
    if len(own) <= 1 and own in ((), (1,), tokens[-1:]):
        return arg
    if own == tokens:
        return reshaped(node, arg, (*rows, own[-1]))
    if _kept(own, tokens) is None or own[:kept] not in (tokens[:kept], (1,) * kept):
        return None
    return reshaped(node, arg, (math.prod(own[:kept]), 1, own[-1]))
