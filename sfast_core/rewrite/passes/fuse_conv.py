"""Convolutions of images and videos with their epilogue as one op: bias, a sum per channel, the residual, SiLU."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.conv2d_act import conv2d_act
from ..graph import alike, calls, calls_of, insert, insert_as, metas, named, replace, shape, sole_user, value
from ..patterns import HasImpl, split_channel_add
from ..videos import has_videos


def _residual(conv: Node, total: Node | None) -> Node | None:
    """The other term of ``total = conv + other``, where both have the same shape and dtype."""
    if total is None or not calls(total, torch.add):
        return None
    others = [arg for arg in total.args if arg is not conv]
    return others[0] if len(others) == 1 and alike(others[0], conv) else None


def fuse_conv_act(graph: Graph, has_impl: HasImpl) -> int:
    """Fuse each convolution with the sums and the activation that only it feeds; of videos where a kernel can."""
    fused = 0
    videos = has_videos(graph)
    for node in calls_of(graph, F.conv2d, F.conv3d):
        of_video = node.target is F.conv3d
        if value(node).dim() != 4 + of_video or isinstance(named(node).padding, str):
            continue
        if of_video and not (videos and has_impl(conv2d_act, *metas(node.args))):
            continue
        last, channel, residual, act = node, None, None, "none"
        user = sole_user(last)
        if user is not None and (parts := split_channel_add(user)) and parts[0] is last:
            channel, last = insert(user, torch.reshape, parts[1], shape(parts[1])[:2]), user
            user = sole_user(last)
        other = _residual(last, user)
        if other is not None and user is not None:
            residual, last = other, user
            user = sole_user(last)
        if user is not None and calls(user, F.silu):
            act, last = "silu", user
        new = insert_as(last, value(last), conv2d_act, *node.args, residual, act, channel)
        replace(last, new)
        fused += 1
    return fused
