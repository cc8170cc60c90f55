"""Convolutions and norms of videos that are those of images.

Stable Video Diffusion has a block that looks along time alone behind each of its residual blocks: GroupNorm and SiLU of
[B, C, T, H, W], and a convolution with a kernel of [3, 1, 1]. The frames come from images, with their channels
innermost, and so are seen as an image [B, C, T, H * W] without a copy. So are all videos of a model that convolves over
their space (:mod:`.videos`); there a kernel of one frame is a convolution of the frames.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ...ops.conv2d_act import conv2d_act
from ...ops.group_norm_act import group_norm_act
from ..graph import (
    alike,
    calls,
    calls_of,
    drop_unused,
    given,
    insert,
    insert_as,
    metas,
    named,
    replace,
    shape,
    sole_user,
    value,
)
from ..patterns import HasImpl
from ..videos import as_frames, as_rows, from_frames, has_videos

_FARTHEST = 16  #: operations between a convolution and the images


def frames_as_images(graph: Graph, has_impl: HasImpl) -> int:
    """Each convolution over time alone, or over frames alone, that a kernel computes so, with the norm and the
    activation in front of it and the sum behind it.
    """
    innermost = has_videos(graph)
    changed = sum([_convolution(node, has_impl, innermost) for node in calls_of(graph, F.conv3d)])
    if innermost:
        changed += sum([_norm(node, has_impl) for node in calls_of(graph, F.group_norm)])
    drop_unused(graph)
    return changed


def _convolution(node: Node, has_impl: HasImpl, innermost: bool) -> bool:
    call = named(node)
    frames, weight = call.input, call.weight
    if value(node).dim() != 5 or not isinstance(weight, Node) or isinstance(call.padding, str):
        return False
    stride, padding, dilation = (
        (each,) * 3 if isinstance(each, int) else tuple(each) for each in (call.stride, call.padding, call.dilation)
    )
    taps = shape(weight)[2:]
    along_time = taps[1:] == (1, 1) and stride[1:] == (1, 1) and padding[1:] == (0, 0)
    if not along_time and not (innermost and taps[0] == stride[0] == 1 and padding[0] == 0):
        return False
    front = _front(frames) if along_time else None
    if not innermost and not _of_images(front[0] if front else frames):
        return False
    see = as_rows if along_time else as_frames
    x = see(front[0] if front else frames, node)
    kept = slice(0, 2) if along_time else slice(1, 3)  # of the three dimensions
    size = (*shape(weight)[:2], taps[0], 1) if along_time else (*shape(weight)[:2], *taps[1:])
    kernel = insert(node, torch.reshape, weight, size)
    arguments = (x, kernel, call.bias, stride[kept], padding[kept], dilation[kept], call.groups)
    if not has_impl(conv2d_act, *metas(arguments)):
        drop_unused(node.graph)
        return False
    if front:
        _, norm, act = front
        x = insert_as(node, value(x), F.group_norm, *given(norm, input=x))
        x = insert_as(node, value(x), F.silu, x) if act else x
    out = shape(node)
    images = (*out[:3], out[3] * out[4]) if along_time else (out[0] * out[2], out[1], *out[3:])
    new = insert_as(node, value(node).new_empty(images), F.conv2d, x, *arguments[1:])
    total, last = sole_user(node), node
    if calls(total, torch.add) and len(total.args) == 2 and alike(total, node):
        other = next((arg for arg in total.args if arg is not node), None)
        if alike(other, node):
            with_other = [new if arg is node else see(arg, total) for arg in total.args]  # type: ignore[arg-type]
            new, last = insert_as(total, value(new), torch.add, *with_other), total
    back = (
        insert_as(last, value(last), torch.reshape, new, shape(last)) if along_time else from_frames(new, last, out[0])
    )
    replace(last, back)
    return True


def _norm(node: Node, has_impl: HasImpl) -> bool:
    """A GroupNorm of a video, and SiLU behind it."""
    if value(node).dim() != 5:
        return False
    user = sole_user(node)
    last = user if user is not None and calls(user, F.silu) else node
    x = as_rows(named(node).input, node)
    if not has_impl(group_norm_act, *metas(given(node, input=x)), "silu" if last is user else "none"):
        drop_unused(node.graph)
        return False
    normed = insert_as(last, value(x), F.group_norm, *given(node, input=x))
    if last is user:
        normed = insert_as(last, value(x), F.silu, normed)
    replace(last, insert_as(last, value(last), torch.reshape, normed, shape(last)))
    return True


def _of_images(frames: Any) -> bool:
    """Whether frames are images that were put in a row, with their channels innermost: what comes from other videos
    lies otherwise and would be copied.
    """
    for _ in range(_FARTHEST):
        if not isinstance(frames, Node) or value(frames).dim() != 5:
            return isinstance(frames, Node) and value(frames).dim() == 4
        if calls(frames, torch.reshape, torch.permute):
            frames = frames.args[0]
        elif calls(frames, torch.add, torch.mul, torch.addcmul, F.silu, F.group_norm):
            frames = next((arg for arg in frames.args if alike(arg, frames)), None)
        else:
            return False
    return False


def _front(frames: Any) -> tuple[Node, Node, bool] | None:
    """What a GroupNorm in front is made of, the norm, and whether SiLU stands behind it, where nobody else reads
    either.
    """
    act = calls(frames, F.silu)
    norm = frames.args[0] if act else frames
    if not calls(norm, F.group_norm) or len(frames.users) != 1 or len(norm.users) != 1 or not alike(norm.args[0], norm):
        return None
    return norm.args[0], norm, act  # type: ignore[return-value]
