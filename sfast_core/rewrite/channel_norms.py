"""RMSNorms over the channels of videos and images, as autoencoders spell them, with modulation and activation."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Node

from ..capture.functional import cast_like
from .graph import FLOATS, alike, called, calls, insert, is_tensor, named, other_of, shape, sole_user, value
from .rms_norms import default_eps, mean_square_of


@dataclass(frozen=True)
class ChannelNorm:
    """``act(n * factor + shift)``, n the RMSNorm of x over its channels times ``weight``, or x itself."""

    last: Node  #: whose result it is
    x: Node
    eps: float | None = None
    weight: Node | None = None
    factor: Node | None = None
    shift: Node | None = None
    act: str = "none"


def channel_norm_of(node: Node) -> ChannelNorm | None:
    """The norm that begins with this node: ``F.normalize`` and a factor, or a quotient with a root of a mean square."""
    found = _normalised(node) or _divided(node) or _turned(node)
    return None if found is None else _activated(_modulated(found))


def _normalised(node: Node) -> ChannelNorm | None:
    """``F.normalize(x, dim=1) * sqrt(C)``, also by way of float32 (diffusers 0.42): nothing is as small as the eps
    below which it divides by that instead.
    """
    if not called(node, "normalize") or not node.args or len(node.args) > 1 or not isinstance(node.args[0], Node):
        return None
    given = {"p": 2.0, "dim": 1, "eps": 1e-12, "out": None, **node.kwargs}
    x, normalised = _without_casts(node)
    if (
        given["p"] != 2
        or given["dim"] != 1
        or given["out"] is not None
        or value(x).dim() not in (4, 5)
        or value(x).dtype not in FLOATS
    ):
        return None
    scaled, channels = sole_user(normalised), shape(x)[1]
    if (
        not calls(scaled, torch.mul)
        or type(scaled.args[1]) not in (int, float)
        or not math.isclose(scaled.args[1], math.sqrt(channels), rel_tol=1e-6)
    ):
        return None
    return ChannelNorm(scaled, x, given["eps"] ** 2 / channels)


def _without_casts(node: Node) -> tuple[Node, Node]:
    """What ``node`` computes its result of, and the result: without a cast to float32 in front and the one back."""
    given: Any = node.args[0]
    back: Any = sole_user(node)
    if value(node).dtype == torch.float32 and calls(given, cast_like) and calls(back, cast_like):
        x: Any = given.args[0]
        if value(back).dtype == value(x).dtype:
            return x, back
    return given, node


def _divided(node: Node) -> ChannelNorm | None:
    """``x / sqrt(mean(x ** 2, 1, keepdim=True) + eps)``."""
    if (
        not calls(node, torch.div)
        or len(node.args) != 2
        or not isinstance(node.args[0], Node)
        or not alike(node.args[0], node)
    ):
        return None
    x: Any = node.args[0]
    root: Any = node.args[1]
    if not called(root, "sqrt") or sole_user(root) is not node or value(x).dim() not in (4, 5):
        return None
    total: Any = root.args[0]
    if (
        value(x).dtype not in FLOATS
        or not calls(total, torch.add)
        or type(total.args[1]) is not float
        or sole_user(total) is not root
    ):
        return None
    return ChannelNorm(node, x, total.args[1]) if mean_square_of(total.args[0], total, 1) is x else None


def _turned(node: Node) -> ChannelNorm | None:
    """``F.rms_norm`` of a video whose channels were moved behind all else for it, and are moved back."""
    if not calls(node, F.rms_norm) or not calls(node.args[0], torch.permute):
        return None
    call = named(node)
    turned: Any = call.input
    back, rank = sole_user(node), value(node).dim()
    behind, between = (0, *range(2, rank), 1), (0, rank - 1, *range(1, rank - 1))
    if (
        rank not in (4, 5)
        or not calls(back, torch.permute)
        or value(node).dtype not in FLOATS
        or tuple(call.normalized_shape) != shape(node)[-1:]
    ):
        return None
    if any(tuple(dim % rank for dim in named(each).dims) != dims for each, dims in ((turned, behind), (back, between))):
        return None
    eps = default_eps(value(node).dtype, node.meta["device"]) if call.eps is None else call.eps
    return ChannelNorm(back, turned.args[0], eps, call.weight)


def _modulated(norm: ChannelNorm) -> ChannelNorm:
    """With the vectors behind it that nobody else's reading hinders."""
    while True:
        user = sole_user(norm.last)
        if not calls(user, torch.mul, torch.add) or len(user.args) != 2 or not alike(user, norm.last):
            return norm
        other = other_of(user, norm.last)
        if calls(user, torch.add) and type(other) in (int, float) and other == 0:
            norm = replace(norm, last=user)
            continue
        vector = _vector(other, norm.last)
        if vector is None:
            return norm
        if calls(user, torch.add):
            if norm.shift is not None:
                return norm
            norm = replace(norm, last=user, shift=vector)
        elif norm.shift is not None or norm.factor is not None:
            return norm
        elif norm.weight is None and value(vector).numel() == shape(norm.x)[1]:
            norm = replace(norm, last=user, weight=vector)
        else:
            norm = replace(norm, last=user, factor=vector)


def _vector(other: Any, x: Node) -> Node | None:
    """A node that has one value for each channel, [B or 1, C, 1, ...] or [C, 1, ...]."""
    if not is_tensor(other) or not value(other).is_floating_point():
        return None
    sizes, full = shape(other), shape(x)
    spread = len(full) - 2
    if sizes[-spread:] != (1,) * spread or sizes[:-spread] not in {(full[1],), (1, full[1]), (full[0], full[1])}:
        return None
    return other


def _activated(norm: ChannelNorm) -> ChannelNorm:
    user = sole_user(norm.last)
    return replace(norm, last=user, act="silu") if calls(user, F.silu) else norm


def vectors(norm: ChannelNorm, before: Node) -> tuple[Node | None, Node | None, Node | None]:
    """Its weight, factor and shift as an op takes them: [C], and [B or 1, C]."""
    channels = shape(norm.x)[1]
    weight = None if norm.weight is None else insert(before, torch.reshape, norm.weight, (channels,))
    rows = [
        None if each is None else insert(before, torch.reshape, each, (value(each).numel() // channels, channels))
        for each in (norm.factor, norm.shift)
    ]
    return weight, rows[0], rows[1]
