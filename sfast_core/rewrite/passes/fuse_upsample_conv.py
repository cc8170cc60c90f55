"""A 3x3 convolution of an image that is doubled by repeating its pixels: one op, which needs no doubled image."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.upsample_conv2d import upsample_conv2d
from ..graph import calls, calls_of, insert_as, named, replace, shape, sole_user, throughout, value


def _doubled(node: Any) -> Node | None:
    """The image whose pixels ``node`` repeats twice in both directions, also by way of float32 (diffusers' Wan and
    Qwen-Image): what is repeated is rounded to itself.

    At exactly twice the size "nearest" and "nearest-exact" are the same. A factor near 2 may give that size with other
    pixels.
    """
    if calls(node, cast_like) and value(node.args[0]).dtype == torch.float32 and calls(node.args[0], F.interpolate):
        wide = _doubled(node.args[0])
        x: Any = wide.args[0] if calls(wide, cast_like) else None
        return x if isinstance(x, Node) and value(x).dtype == value(node).dtype else None
    if not calls(node, F.interpolate) or value(node).dim() != 4:
        return None
    call = named(node)
    if call.mode not in ("nearest", "nearest-exact"):
        return None
    if not (call.scale_factor is None or call.recompute_scale_factor or throughout(call.scale_factor, 2)):
        return None
    return call.input if shape(node)[2:] == tuple(2 * size for size in shape(call.input)[2:]) else None


def fuse_upsample_conv(graph: Graph) -> int:
    """Fuse each doubled image with the 3x3 convolution that alone uses it, where that keeps its size."""
    fused = 0
    for node in calls_of(graph, F.conv2d):
        call = named(node)
        x = _doubled(call.input)
        if x is None or sole_user(call.input) is not node or shape(call.weight)[2:] != (3, 3):
            continue
        if call.groups == 1 and all(throughout(each, 1) for each in (call.stride, call.padding, call.dilation)):
            replace(node, insert_as(node, value(node), upsample_conv2d, x, call.weight, call.bias))
            fused += 1
    return fused
