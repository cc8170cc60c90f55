"""Convolutions and norms of videos that are those of images.

Stable Video Diffusion has a block that looks along time alone behind each of its residual blocks: GroupNorm and SiLU of
[B, C, T, H, W], and a convolution with a kernel of [3, 1, 1]. The frames come from images, with their channels
innermost, and so are seen as an image [B, C, T, H * W] without a copy. So are all videos of a model that convolves over
their space (:mod:`.videos`); there a kernel of one frame is a convolution of the frames.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
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
    other_of,
    replace,
    shape,
    sole_user,
    value,
)
from ..patterns import HasImpl
from ..videos import as_frames, as_rows, from_frames, has_videos

_FARTHEST = 16  #: operations between a convolution and the images


def frames_as_images(graph: Graph, has_impl: HasImpl) -> int:
    """Each convolution over time alone, or frames alone, that a kernel computes so, with its norm and its sum."""
    innermost = has_videos(graph)
    changed = sum([_convolution(node, has_impl, innermost) for node in calls_of(graph, F.conv3d)])
    if innermost:
        changed += sum([_norm(node, has_impl) for node in calls_of(graph, F.group_norm)])
    return changed


@dataclass(frozen=True)
class _Seen:
    """How a convolution of a video is one of images.

    Attributes:
        along_time: each pixel's frames are the rows of an image; else each frame is an image.
        see: makes the image of a video, in front of a node.
        kept: which of the stride's, padding's and dilation's three numbers are the image's.
        kernel: the weight's shape.
        size: the result's.
    """

    along_time: bool
    see: Callable[[Node, Node], Node]
    kept: slice
    kernel: tuple[int, ...]
    size: tuple[int, ...]

    def back(self, image: Node, video: Node) -> Node:
        """The image as the video that it stands for."""
        if self.along_time:
            return insert_as(video, value(video), torch.reshape, image, shape(video))
        return from_frames(image, video, shape(video)[0])


def _convolution(node: Node, has_impl: HasImpl, innermost: bool) -> bool:
    call = named(node)
    if value(node).dim() != 5 or not isinstance(call.weight, Node) or isinstance(call.padding, str):
        return False
    steps = [
        (each,) * 3 if isinstance(each, int) else tuple(each) for each in (call.stride, call.padding, call.dilation)
    ]
    seen = _seen(node, call.weight, steps[0], steps[1], innermost)
    if seen is None:
        return False
    front = _front(call.input) if seen.along_time else None
    frames = front[0] if front else call.input
    if not innermost and not _of_images(frames):
        return False
    x = seen.see(frames, node)
    kernel = insert(node, torch.reshape, call.weight, seen.kernel)
    arguments = (x, kernel, call.bias, *(each[seen.kept] for each in steps), call.groups)
    if not has_impl(conv2d_act, *metas(arguments)):
        drop_unused(node.graph)
        return False
    if front:
        _, norm, act = front
        x = insert_as(node, value(x), F.group_norm, *given(norm, input=x))
        x = insert_as(node, value(x), F.silu, x) if act else x
    image = insert_as(node, value(node).new_empty(seen.size), F.conv2d, x, *arguments[1:])
    image, last = _with_sum(node, image, seen)
    replace(last, seen.back(image, last))
    return True


def _seen(node: Node, weight: Node, stride: tuple[int, ...], padding: tuple[int, ...], innermost: bool) -> _Seen | None:
    """How ``node`` is seen as a convolution of images; None where it isn't, or frames would have to be copied."""
    out, (outputs, inputs, *taps) = shape(node), shape(weight)
    if taps[1:] == [1, 1] and stride[1:] == (1, 1) and padding[1:] == (0, 0):
        size = (*out[:3], out[3] * out[4])
        return _Seen(True, as_rows, slice(0, 2), (outputs, inputs, taps[0], 1), size)
    if innermost and taps[0] == stride[0] == 1 and padding[0] == 0:
        size = (out[0] * out[2], out[1], *out[3:])
        return _Seen(False, as_frames, slice(1, 3), (outputs, inputs, *taps[1:]), size)
    return None


def _with_sum(node: Node, image: Node, seen: _Seen) -> tuple[Node, Node]:
    """``image``, which stands for ``node``, with what its sole reader adds to that; and what the two stand for."""
    total = sole_user(node)
    if not calls(total, torch.add) or len(total.args) != 2 or not alike(total, node):
        return image, node
    other = other_of(total, node)
    if not alike(other, node):
        return image, node
    parts = [image if arg is node else seen.see(arg, total) for arg in total.args]
    return insert_as(total, value(image), torch.add, *parts), total


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
    """Whether frames are images in a row, channels innermost: what comes of other videos would be copied."""
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
    """What a GroupNorm in front is made of, the norm, and whether SiLU follows it, if nobody else reads either."""
    act = calls(frames, F.silu)
    norm = frames.args[0] if act else frames
    if not calls(norm, F.group_norm) or len(frames.users) != 1 or len(norm.users) != 1 or not alike(norm.args[0], norm):
        return None
    return norm.args[0], norm, act
