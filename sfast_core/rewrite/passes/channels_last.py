"""NHWC from the first convolution to the last: images and convolution weights with their channels innermost in memory.

NCHW costs 1.3 to 3 times NHWC at every convolution measured, and token reshapes of NHWC maps are views. The ops keep
the layout of what they get, so it is enough to turn what comes from elsewhere (the latent) where it enters, and every
``contiguous`` behind is gone already. Left out, 75 conversions took 6 of SDXL's 33 ms.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch.fx import Graph, Node

from ...capture.functional import cast_like
from ...ops.conv2d_act import conv2d_act
from ...ops.conv2d_shortcut import conv2d_shortcut
from ...ops.group_norm_act import group_norm_act
from ...ops.norm_pad_video import norm_pad_video
from ...ops.upsample_conv2d import upsample_conv2d
from ...weights import CHANNELS_LAST, ChannelsLast, Weight
from ...weights.channels_last import INNERMOST
from ..graph import calls, calls_of, given, insert_as, is_free_weight, named, shape, value
from ..patterns import MayLay
from ..videos import frames_of

_CONVOLUTIONS = (conv2d_act, conv2d_shortcut, upsample_conv2d)
#: Which arguments of an op are images that a kernel reads as they lie.
_IMAGES: dict[Callable[..., Any], str] = {
    conv2d_act: "x",
    conv2d_shortcut: "x shortcut tail",
    upsample_conv2d: "x",
    group_norm_act: "x tail",
    norm_pad_video: "x",
}


def channels_last(x: torch.Tensor) -> torch.Tensor:
    """An image or a video with its channels innermost; x itself where they are."""
    return x.contiguous(memory_format=INNERMOST[x.dim()])


def images_channels_last(graph: Graph) -> int:
    """Turn the input of each image op that no other image op made.

    Nothing happens at run time where it is turned already.
    """
    changed = 0
    for node in calls_of(graph, *_IMAGES):
        for name in _IMAGES[node.target].split():
            image = getattr(named(node), name)
            if isinstance(image, Node) and not calls(image, *_IMAGES, channels_last):
                turned = torch.empty_like(value(image), memory_format=INNERMOST[value(image).dim()])
                node.args = given(node, **{name: insert_as(node, turned, channels_last, image)})
                changed += 1
    return changed


def convolutions_channels_last(graph: Graph, may_pack: MayLay) -> int:
    """Ask for channels_last storage of each convolution's weight that may have it.

    A 1x1 kernel is the same memory either way.

    Any other is turned at each call, by the kernel that reads it. So is one that is cast first, under autocast: a model
    that runs with autocast and without has its weights in one layout for both.
    """
    changed = 0
    for node in calls_of(graph, *_CONVOLUTIONS):
        weight = named(node).weight
        between = []  # from the weight to the convolution
        while _is_part(weight) or calls(weight, cast_like):
            between.append(weight)
            weight = weight.args[0]
        if not is_free_weight(weight) or set(shape(weight)[2:]) == {1}:
            continue
        wanted = Weight(weight.meta["source"].refs, CHANNELS_LAST)
        if all(map(_reads_innermost, weight.users)) and may_pack(wanted):
            weight.meta["source"], weight.meta["val"] = wanted, ChannelsLast.meaning(value(weight))
            for cast in between:
                if calls(cast, cast_like):
                    cast.meta["val"] = ChannelsLast.meaning(value(cast))
            changed += 1
    return changed


def _reads_innermost(user: Node) -> bool:
    hands_on = _is_part(user) or calls(user, cast_like)
    return calls(user, *_CONVOLUTIONS) or (hands_on and bool(user.users) and all(map(_reads_innermost, user.users)))


def _is_part(node: Any) -> bool:
    """Whether a node is a video's kernel seen as an image's, or some of its frames: a picture has none before it."""
    return frames_of(node) is not None or (calls(node, torch.reshape) and shape(node)[:2] == shape(node.args[0])[:2])
