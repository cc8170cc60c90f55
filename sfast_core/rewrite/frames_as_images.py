"""The blocks of a video U-Net that look along time alone: a convolution over frames is one of an image whose rows are the frames.

Stable Video Diffusion has such a block behind each of its residual blocks: GroupNorm and SiLU of [B, C, T, H, W], and a convolution with a kernel of
[3, 1, 1]. The frames come from images, with their channels innermost, and so are seen as an image [B, C, T, H * W] without a copy.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from ..ops.conv2d_act import conv2d_act
from .graph import alike, calls, calls_of, drop_unused, given, insert, insert_as, metas, named, replace, shape, sole_user, value
from .patterns import HasImpl

_FARTHEST = 16  #: operations between a convolution and the images


def frames_as_images(graph: Graph, has_impl: HasImpl) -> int:
    """Each convolution over time alone that a kernel computes so, with the norm and the activation in front of it and the sum behind it."""
    changed = sum([_convolution(node, has_impl) for node in calls_of(graph, F.conv3d)])
    drop_unused(graph)
    return changed


def _convolution(node: Node, has_impl: HasImpl) -> bool:
    call = named(node)
    frames, weight = call.input, call.weight
    if value(node).dim() != 5 or not isinstance(weight, Node):
        return False
    stride, padding, dilation = ((each,) * 3 if isinstance(each, int) else each for each in (call.stride, call.padding, call.dilation))
    if isinstance(padding, str) or shape(weight)[3:] != (1, 1) or tuple(stride[1:]) != (1, 1) or tuple(padding[1:]) != (0, 0):
        return False
    front = _front(frames)
    if not _of_images(front[0] if front else frames):
        return False
    x = _image(front[0] if front else frames, node)
    kernel = insert(node, torch.reshape, weight, shape(weight)[:-1])
    arguments = (x, kernel, call.bias, (stride[0], 1), (padding[0], 0), (dilation[0], 1), call.groups)
    if not has_impl(conv2d_act, *metas(arguments)):
        drop_unused(node.graph)
        return False
    if front:
        _, norm, act = front
        x = insert_as(node, value(x), F.group_norm, *given(norm, input=x))
        x = insert_as(node, value(x), F.silu, x) if act else x
    new = insert_as(node, value(node).new_empty(_rows(node)), F.conv2d, x, *arguments[1:])
    total, last = sole_user(node), node
    if calls(total, torch.add) and len(total.args) == 2 and alike(total, node):
        other = next((arg for arg in total.args if arg is not node), None)
        if alike(other, node):
            with_other = [new if arg is node else _image(arg, total) for arg in total.args]
            new, last = insert_as(total, value(new), torch.add, *with_other), total
    replace(last, insert_as(last, value(last), torch.reshape, new, shape(last)))
    return True


def _of_images(frames: Any) -> bool:
    """Whether frames are images that were put in a row, with their channels innermost: what comes from other videos lies otherwise and would be copied."""
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
    """What a GroupNorm in front is made of, the norm, and whether SiLU stands behind it, where nobody else reads either."""
    act = calls(frames, F.silu)
    norm = frames.args[0] if act else frames
    if not calls(norm, F.group_norm) or len(frames.users) != 1 or len(norm.users) != 1 or not alike(norm.args[0], norm):
        return None
    return norm.args[0], norm, act  # type: ignore[return-value]


def _image(frames: Any, before: Node) -> Node:
    return insert(before, torch.reshape, frames, _rows(frames))


def _rows(frames: Node) -> tuple[int, ...]:
    batch, channels, time, height, width = shape(frames)
    return batch, channels, time, height * width
