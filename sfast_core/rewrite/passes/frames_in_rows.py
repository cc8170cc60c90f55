"""Tokens of a video, [B, T * N, C], of which each frame has a modulation of its own, as the tokens of B * T images, [B
* T, N, C].

Wan 2.2's 5B model has a timestep for each frame where an image is given, and so do models driven by sound: each scale,
shift and gate is repeated for all tokens of a frame. The passes that fuse norms and modulations know one row for each
image: a frame is one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..graph import calls, calls_of, given, insert, insert_as, is_tensor, named, reshaped, shape, value
from ..patterns import repeated_along

_ELEMENTWISE = (torch.add, torch.mul, torch.addcmul)
_NORMS = (F.layer_norm, F.rms_norm)
_Rows = tuple[int, int]


def frames_in_rows(graph: Graph) -> int:
    """Each norm, and each operation that is done to every token alike, where what is repeated is put on tokens that are
    normed, too.
    """
    repeated = {node: e for node in graph.nodes if (e := _repeated(node)) is not None}
    normed = {shape(node)[:-1] for node in calls_of(graph, *_NORMS) if len(tuple(named(node).normalized_shape)) == 1}
    frames: dict[_Rows, _Rows] = {}
    for node, e in repeated.items():
        images, length, _ = shape(node)
        if (images, length) in normed and any(calls(user, *_ELEMENTWISE) for user in node.users):
            rows = (images * shape(e)[1], length // shape(e)[1])
            if frames.setdefault((images, length), rows) != rows:  # repeated in two ways
                return 0
    changed = 0
    compact: dict[Node, Node] = {}  # what is the same for all tokens of a frame, once for each frame
    for node in list(graph.nodes) if frames else ():
        known = is_tensor(node) and value(node).dim() == 3
        rows_ = frames.get((shape(node)[0], shape(node)[1])) if known else None
        if rows_ is None:
            continue
        if node in repeated:
            compact[node] = insert(node, torch.reshape, repeated[node], (rows_[0], 1, shape(node)[-1]))
        elif calls(node, *_NORMS) and len(tuple(named(node).normalized_shape)) == 1:
            x: Any = named(node).input
            changed += _seen_back(node, rows_, *given(node, input=reshaped(node, x, (*rows_, shape(x)[-1]))))
        elif calls(node, *_ELEMENTWISE):
            changed += _elementwise(node, rows_, compact)
    return changed


def _repeated(node: Node) -> Node | None:
    """What ``node`` repeats, each row of an image as often as the others."""
    e, _, dim = repeated_along(node) or (None, 0, 0)
    return e if e is not None and value(e).dim() == 3 and dim == 1 and shape(e)[1] > 1 else None


def _elementwise(node: Node, rows: _Rows, compact: dict[Node, Node]) -> bool:
    operands = [_operand(node, arg, rows, compact) for arg in node.args]
    if any(arg is None for arg in operands):
        return False
    of_frames = [arg in compact for arg in node.args if isinstance(arg, Node)]
    if any(of_frames) and all(of_frames):
        compact[node] = insert(node, node.target, *operands)
        return False
    return _seen_back(node, rows, *operands)


def _operand(node: Node, arg: Any, rows: _Rows, compact: dict[Node, Node]) -> Any:
    """What stands for an operand: numbers and what is the same for all images as they are, tokens and rows of frames
    seen as such; None where it can't be.
    """
    if not isinstance(arg, Node):
        return arg
    if arg in compact:
        return compact[arg]
    if shape(arg) == shape(node):
        return reshaped(node, arg, (*rows, shape(arg)[-1]))
    if (
        math.prod(shape(arg)[:-1]) == 1
        and shape(arg)[-1:] in ((), (1,), shape(node)[-1:])
        and value(arg).dim() in (0, 1, 3)
    ):
        return arg
    return None


def _seen_back(node: Node, rows: _Rows, *operands: Any) -> bool:
    """Let ``node`` be computed of ``operands``, in rows; what reads it sees it in the shape that it had."""
    val = value(node)
    new = insert_as(node, val.new_empty((*rows, val.shape[-1])), node.target, *operands)
    node.replace_all_uses_with(insert(node, torch.reshape, new, tuple(val.shape)))
    node.graph.erase_node(node)
    return True
