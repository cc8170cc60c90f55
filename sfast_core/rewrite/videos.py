"""Videos, [B, C, T, H, W], with channels innermost: who has them, how they are seen as images, who takes frames.

Where a model convolves over the space of videos (their autoencoders do), all its videos lie so from the first
convolution on.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from .graph import arguments, called, calls, calls_of, insert, insert_as, is_tensor, named, shape, value
from .parts import part_of

_FEWEST = 2  #: such convolutions: a model of one alone takes a video apart, and goes on with tokens
_TIME = 2  #: which dimension the frames are


def has_videos(graph: Graph) -> bool:
    """Whether videos are convolved over space, with or without time; what cuts them into patches isn't meant."""
    return sum(map(_is_of_videos, calls_of(graph, F.conv3d))) >= _FEWEST


def _is_of_videos(node: Node) -> bool:
    call = named(node)
    if value(node).dim() != 5 or not isinstance(call.weight, Node):
        return False
    taps, stride = shape(call.weight)[2:], call.stride if isinstance(call.stride, (tuple, list)) else (call.stride,) * 3
    return max(taps[1:]) > 1 and tuple(stride) != taps


def is_video(node: Any) -> bool:
    """Whether a node is a tensor of five dimensions."""
    return is_tensor(node) and value(node).dim() == 5


class Padding(NamedTuple):
    """What a video is padded with: frames in front and behind, rows above and below, columns left and right."""

    sizes: tuple[int, ...]
    mode: str
    value: Any


def padding_of(node: Any) -> Padding | None:
    """How a node pads a video; None where it doesn't, or takes some of it away."""
    call = arguments(node, "x pad mode value", mode="constant", value=None) if called(node, "pad") else None
    if call is None or not is_video(node) or not isinstance(call.pad, (tuple, list)):
        return None
    sizes: list[Any] = [*call.pad, *(0,) * (6 - len(call.pad))]
    if any(type(size) is not int or size < 0 for size in sizes):
        return None
    left, right, top, bottom, front, back = sizes
    return Padding((front, back, top, bottom, left, right), call.mode, call.value)


def as_rows(video: Node, before: Node) -> Node:
    """A video as images whose rows are its frames, [B, C, T, H * W]."""
    batch, channels, frames, height, width = shape(video)
    return _seen(video, before, (batch, channels, frames, height * width))


def as_frames(video: Node, before: Node) -> Node:
    """A video as its frames, [B * T, C, H, W]."""
    batch, channels, frames, height, width = shape(video)
    return _seen(
        insert(before, torch.permute, video, (0, 2, 1, 3, 4)), before, (batch * frames, channels, height, width)
    )


def from_frames(images: Node, before: Node, batch: int) -> Node:
    """Frames as the video again."""
    count, channels, height, width = shape(images)
    return insert(
        before, torch.permute, _seen(images, before, (batch, count // batch, channels, height, width)), (0, 2, 1, 3, 4)
    )


def _seen(x: Node, before: Node, size: tuple[int, ...]) -> Node:
    return insert_as(before, value(x).new_empty(size), torch.reshape, x, size)


def frames_of(node: Any) -> tuple[Node, int, int] | None:
    """The video that a node takes some of the frames of, the first of them, and which comes behind the last."""
    part = part_of(node) if is_video(node) and not calls(node, torch.narrow) else None
    return (part.x, part.start, part.stop) if part is not None and part.dim == _TIME and is_video(part.x) else None


def repeated_frame(node: Any) -> tuple[Node, int, int] | None:
    """The video one frame of which a node is several times, which one, and how often."""
    times = 1
    if called(node, "repeat", "expand") and not node.kwargs:
        sizes = node.args[1] if len(node.args) == 2 and isinstance(node.args[1], (tuple, list)) else node.args[1:]
        if (
            len(sizes) != 5
            or any(isinstance(size, Node) for size in sizes)
            or not is_video(node.args[0])
            or shape(node.args[0])[2] != 1
        ):
            return None
        times = shape(node)[2]
        if shape(node) != (*shape(node.args[0])[:2], times, *shape(node.args[0])[3:]):
            return None
        node = node.args[0]
    found = frames_of(node)
    return (found[0], found[1], times) if found is not None and found[2] - found[1] == 1 else None
