"""Both convolutions as one of the CUDA extension, on Hopper: the 1x1 convolution's channels are further depth of the other's products.

By themselves a shortcut's products write their sum, the convolution reads it again, and a concatenation takes two of them. The kernels are
those of :mod:`..conv2d_act.cuda_impl`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..constraints import why_not_half
from ..conv2d_act import cuda_impl as convolution
from ..conv2d_act.cut import DEPTH
from ..conv2d_act.reference import IntOrPair, out_size

if TYPE_CHECKING:
    from ...target import Target

#: Of all images of the result. With so few a convolution that is split along its depth is faster than the extension's, more than the two products
#: beside it cost (H100, us: 2x1280x8x8 with 2560 channels of shortcut 36, apart 20 and two of 6).
MOST_PIXELS_APART = 128


def why_not(
    target: Target,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: IntOrPair,
    shortcut: torch.Tensor,
    shortcut_weight: torch.Tensor,
    shortcut_bias: torch.Tensor | None,
    tail: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    others = {"shortcut": shortcut, "shortcut_weight": shortcut_weight, "shortcut_bias": shortcut_bias, "tail": tail}
    if reason := convolution.why_not(target, x, weight, bias, 1, padding) or why_not_half(x, **others):
        return reason
    images = [shortcut] if tail is None else [shortcut, tail]
    size = (x.shape[0], *out_size(x.shape, weight.shape, 1, padding))
    for image in images:
        if image.dim() != 4 or (image.shape[0], *image.shape[2:]) != size:
            return f"the shortcut is {list(image.shape)}, must be {size[0]} images of {size[1]} x {size[2]}"
        if image.shape[1] == 0 or image.shape[1] % DEPTH != 0:
            return f"{image.shape[1]} channels of the shortcut must be a multiple of {DEPTH}"
    if size[0] * size[1] * size[2] <= MOST_PIXELS_APART:
        return f"{size[0]} images of {size[1]} x {size[2]} are so few pixels that a convolution and its shortcut are faster apart"
    expected = (weight.shape[0], sum(image.shape[1] for image in images), 1, 1)
    if tuple(shortcut_weight.shape) != expected:
        return f"the shortcut's weight is {list(shortcut_weight.shape)}, must be {list(expected)}"
    return None


def launch(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    padding: IntOrPair,
    shortcut: torch.Tensor,
    shortcut_weight: torch.Tensor,
    shortcut_bias: torch.Tensor | None,
    tail: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`.reference.conv2d_shortcut`, all in float32 until the result is rounded, once.

    Raises:
        ExtensionUnavailable: the extension isn't built.
        ExtensionError: CUDA refused the kernel.
    """
    added = convolution.Shortcut(shortcut, shortcut_weight, tail)
    cut = convolution.best(x, weight, 1, padding, added.channels)
    second_bias = None if shortcut_bias is None else shortcut_bias[None]
    return convolution.launch_cut(cut, x, weight, bias, 1, padding, None, "none", second_bias, added)
