"""Frames that a call keeps for the next one, in memory of their own: what they are some of is let go of once the
convolution has read it.

Autoencoders of videos keep the last frames that each convolution reads, to put them in front of the next. As a part of
a whole they would hold the whole to the end of the call, and be copied then. Their channels stay innermost: so the next
call reads them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import Graph, Node

from ...ops.conv2d_act import conv2d_act
from ...ops.norm_pad_video import norm_pad_video
from ..graph import calls, insert, insert_as, output_of, shape, value
from ..parts import part_of

KEPT = "kept"  #: in a node's meta: it is a result in memory of its own, in the strides of its meta tensor


def keep_frames(graph: Graph) -> int:
    """Copy, as soon as they are computed, the frames of a video that are a result of the call."""
    output = output_of(graph)
    results: Any = output.args[0]
    kept = 0
    for node in dict.fromkeys(results):
        if results.count(node) > 1 or len(shape(node)) != 5:
            continue
        video, start = _whole(node)
        if video is node or not calls(video, conv2d_act, norm_pad_video):
            continue
        part = insert(video.next, torch.narrow, video, 2, start, shape(node)[2])
        copy = insert_as(
            part.next, torch.empty_like(value(node), memory_format=torch.channels_last_3d), kept_copy, part
        )
        copy.meta[KEPT] = True
        output.args = (tuple(copy if result is node else result for result in results),)
        results = output.args[0]
        kept += 1
    return kept


def kept_copy(x: torch.Tensor) -> torch.Tensor:
    """A video of its own, its channels innermost."""
    return x.clone(memory_format=torch.channels_last_3d)


def _whole(node: Node) -> tuple[Node, int]:
    """What a node is some of the frames of, and which of these is its first."""
    start = 0
    while (part := part_of(node)) is not None and part.dim == 2:
        node, start = part.x, start + part.start
    return node, start
