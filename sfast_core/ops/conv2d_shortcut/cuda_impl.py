"""Both convolutions as one of the CUDA extension, on Hopper: the shortcut's channels are further depth of the other's.

By themselves a shortcut's products write their sum, the convolution reads it again, and a concatenation takes two of
them. The kernels are those of :mod:`..conv2d_act.cuda_impl`.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..conv2d_act import cuda_impl as convolution
from ..conv2d_act.reference import conv2d_act, out_size
from ..conv2d_act.tiling import DEPTH
from ..spec import Arguments

#: Of all images of the result. With so few a convolution that is split along its depth is faster than the extension's,
#: more than the two products beside it cost (H100, us: 2x1280x8x8 with 2560 channels of shortcut 36, apart 20 and two
#: of 6).
MOST_PIXELS_APART = 128


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := convolution.why_not(target, Arguments.of(conv2d_act, call.x, call.weight, call.bias, 1, call.padding)):
        return reason
    images = [call.shortcut] if call.tail is None else [call.shortcut, call.tail]
    size = (call.x.shape[0], *out_size(call.x.shape, call.weight.shape, 1, call.padding))
    for image in images:
        if image.dim() != 4 or (image.shape[0], *image.shape[2:]) != size:
            return f"the shortcut is {list(image.shape)}, must be {size[0]} images of {size[1]} x {size[2]}"
        if image.shape[1] == 0 or image.shape[1] % DEPTH != 0:
            return f"{image.shape[1]} channels of the shortcut must be a multiple of {DEPTH}"
    if size[0] * size[1] * size[2] <= MOST_PIXELS_APART:
        return (
            f"{size[0]} images of {size[1]} x {size[2]} are so few pixels that a convolution and its shortcut are"
            " faster apart"
        )
    expected = (call.weight.shape[0], sum(image.shape[1] for image in images), 1, 1)
    if tuple(call.shortcut_weight.shape) != expected:
        return f"the shortcut's weight is {list(call.shortcut_weight.shape)}, must be {list(expected)}"
    return None


def launch(x, weight, bias, padding, shortcut, shortcut_weight, shortcut_bias, tail=None) -> torch.Tensor:
    """As :func:`.reference.conv2d_shortcut`, all in float32 until the result is rounded, once."""
    added = convolution.Shortcut(shortcut, shortcut_weight, tail)
    tiling = convolution.best(x, weight, 1, padding, added.channels)
    second_bias = None if shortcut_bias is None else shortcut_bias[None]
    return convolution.launch_tiled(tiling, x, weight, bias, 1, padding, None, "none", second_bias, added)
