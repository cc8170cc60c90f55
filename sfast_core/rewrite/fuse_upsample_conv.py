"""An image that is doubled by repeating its pixels, and the 3x3 convolution of it: one op, which needs no doubled image."""

from __future__ import annotations

from typing import Any

import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.upsample_conv2d import upsample_conv2d
from .graph import calls, calls_of, drop_unused, insert_as, replace, shape, sole_user, throughout, value

_CONV_ARGUMENTS = 7  # input weight bias stride padding dilation groups


def _doubled(node: Any) -> Node | None:
    """The image whose pixels ``node`` repeats twice in both directions.

    At exactly twice the size "nearest" and "nearest-exact" are the same. A factor near 2 may give that size with other pixels.
    """
    if not calls(node, F.interpolate) or value(node).dim() != 4:
        return None
    x, _, factor, mode, _, from_size, _ = node.args
    if mode not in ("nearest", "nearest-exact") or not (factor is None or from_size or throughout(factor, 2)):
        return None
    return x if shape(node)[2:] == tuple(2 * size for size in shape(x)[2:]) else None


def fuse_upsample_conv(graph: Graph) -> int:
    """Fuse each doubled image with the 3x3 convolution that alone uses it, where that keeps its size."""
    fused = 0
    for node in calls_of(graph, F.conv2d):
        if len(node.args) != _CONV_ARGUMENTS:
            continue
        image, weight, bias, *geometry, groups = node.args
        x = _doubled(image)
        if x is None or sole_user(image) is not node or shape(weight)[2:] != (3, 3):
            continue
        if groups == 1 and all(throughout(given, 1) for given in geometry):
            replace(node, insert_as(node, value(node), upsample_conv2d, x, weight, bias))
            fused += 1
    drop_unused(graph)
    return fused
