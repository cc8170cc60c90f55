"""RMSNorm of queries or keys, the joining of two streams of tokens, and the rotary embedding behind it, in one pass."""

from __future__ import annotations

import functools
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..capture.recorder import function_name
from ..ops.norm_rope import norm_rope
from .fuse_linear_add import HasImpl
from .graph import calls, drop_unused, insert, metas, replace, shape, sole_user, value
from .rotations import Rotation, rotations

_Norm = tuple[Node, Node | None, float]  #: what is normalised, the weight, eps
_HEADS_TO_TOKENS = (0, 2, 1, 3)
_EPSILONS = {dtype: torch.finfo(dtype).eps for dtype in (torch.float16, torch.bfloat16, torch.float32)}


def fuse_norm_rope(graph: Graph, has_impl: HasImpl) -> int:
    """A rotary embedding with the RMSNorm, or the two RMSNorms and their joining, that nobody else reads. Without an impl all stays as it is.

    Without a norm in front of it, what is one kernel already stays, too.
    """
    fused = 0
    made: dict[tuple[Node, ...], Node] = {}
    for rotation in rotations(graph):
        streams = _streams(rotation)
        if rotation.is_kernel and streams[0][2] is None:
            continue
        if rotation.factors not in made:
            made[rotation.factors] = rotation.matrices()
        turned = [_tokens_first(rotation, x) for x, _, _ in streams]
        (_, weight, eps), behind = streams[0], streams[1:]
        arguments = (turned[0], weight, made[rotation.factors], eps, *((turned[1], behind[0][1]) if behind else ()))
        if not has_impl(norm_rope, *metas(arguments)):
            continue
        new = insert(rotation.last, norm_rope, *arguments)
        if rotation.heads == 1:
            new = insert(rotation.last, torch.permute, new, _HEADS_TO_TOKENS)
        replace(rotation.last, new if shape(new) == shape(rotation.last) else insert(rotation.last, torch.reshape, new, shape(rotation.last)))
        fused += 1
    drop_unused(graph)
    return fused


def _streams(rotation: Rotation) -> list[tuple[Node, Node | None, float | None]]:
    """What is rotated, with the norm in front of it: one stream of tokens, or two that are joined."""
    if len(rotation.x.users) > rotation.readers:
        return [(rotation.x, None, None)]
    if norm := _norm(rotation.x):
        return [norm]
    if calls(rotation.x, torch.cat) and all(sole_user(part) is rotation.x for part in rotation.x.args[0]):
        parts, dim = rotation.x.args
        norms = [_norm(part) for part in parts]
        if len(norms) == 2 and dim % 4 == rotation.tokens and norms[0] and norms[1] and norms[0][2] == norms[1][2]:
            return [norms[0], norms[1]]
    return [(rotation.x, None, None)]


def _norm(node: Any) -> _Norm | None:
    """What an RMSNorm over the last dimension is given."""
    if not isinstance(node, Node) or node.op != "call_function" or function_name(node.target) != "rms_norm":
        return None
    given: dict[str, Any] = dict(zip(("input", "normalized_shape", "weight", "eps"), node.args, strict=False)) | dict(node.kwargs)
    x, eps = given["input"], given.get("eps")
    if len(tuple(given["normalized_shape"])) != 1 or value(node).dtype != value(x).dtype or value(x).dtype not in _EPSILONS:
        return None
    return x, given.get("weight"), _default_eps(value(x).dtype, node.meta["device"]) if eps is None else eps


@functools.cache
def _default_eps(dtype: torch.dtype, device: torch.device) -> float:
    """What PyTorch adds where a model names no eps, as ComfyUI's don't: the dtype's epsilon, or on some devices and in some versions float32's.

    Told by a vector whose mean square, 2**-12, is small beside the one and large beside the other.
    """
    normed = F.rms_norm(torch.full((8,), 2.0**-6, dtype=dtype, device=device), (8,))
    return _EPSILONS[dtype if float(normed[0]) < 0.75 else torch.float32]


def _tokens_first(rotation: Rotation, x: Node) -> Node:
    return x if rotation.heads == 2 else insert(rotation.last, torch.permute, x, _HEADS_TO_TOKENS)
