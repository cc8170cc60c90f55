"""What several impls of ``upsample_conv2d`` ask of their arguments."""

from __future__ import annotations

import torch

LEAST_WEIGHT = 2**20  #: values; sums of taps that are fewer are always welcome
MOST_WEIGHT = 4  #: times the result's size. SD1.5's 2x1280x16x16 gains 12 us and would take 52 MB for a result of 5


def why_not_shapes(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> str | None:
    """The reason why these aren't an image and the 3x3 convolution of it, or why the image is too large; or None."""
    if x.dim() != 4:
        return f"x is {x.dim()}-D, must be 4-D"
    if weight.dim() != 4 or tuple(weight.shape[1:]) != (x.shape[1], 3, 3):
        return f"weight is {list(weight.shape)}, must be [outputs, {x.shape[1]}, 3, 3]"
    if bias is not None and tuple(bias.shape) != (weight.shape[0],):
        return f"bias is {list(bias.shape)}, must be [{weight.shape[0]}]"
    for name, tensor in (("weight", weight), ("bias", bias)):
        if tensor is not None and tensor.dtype != x.dtype:
            return f"{name} is {str(tensor.dtype).removeprefix('torch.')}, x is {str(x.dtype).removeprefix('torch.')}"
    if x.shape[0] * (x.shape[2] + 1) * (x.shape[3] + 1) >= 2**31 - 2**16:
        return f"{x.shape[0]} images of {x.shape[2]} x {x.shape[3]} are too many pixels"
    return None


def why_not_weight(x: torch.Tensor, weight: torch.Tensor) -> str | None:
    """Whether the sums of taps, 16 for the weight's 9, take more memory than they are worth."""
    sums, result = 16 * weight.shape[0] * weight.shape[1], 4 * x.shape[0] * weight.shape[0] * x.shape[2] * x.shape[3]
    if sums > LEAST_WEIGHT and sums > MOST_WEIGHT * result:
        return f"the sums of taps are {sums} values, the result {result}: more memory than it is worth"
    return None
