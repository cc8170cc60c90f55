"""A 3x3 convolution to at most 8 channels by the CUDA extension: a model's last, which libraries pad to a wide tile.

H100, fp16, us: 2x320x128x128 to 4 channels 15.9, PyTorch 50.6; 1x128x1024x1024 to 3 channels 144, cuDNN 376. The kernel
is in ``csrc/conv2d_few.cu``.
"""

from __future__ import annotations

import torch

from ...native import load
from ...target import Target
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_plain
from .reference import memory_format_of, pair

MOST_CHANNELS = 8  #: of the result
DEPTH = 64  #: channels of x at a time
MOST_IMAGES = 65535


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_plain(call):
        return reason
    if tuple(call.weight.shape[2:]) != (3, 3) or pair(call.stride) != (1, 1) or pair(call.padding) != (1, 1):
        return (
            f"a kernel of {list(call.weight.shape[2:])}, strides of {pair(call.stride)} and paddings of"
            f" {pair(call.padding)}: must be 3x3, 1 and 1"
        )
    if call.weight.shape[0] > MOST_CHANNELS or call.x.shape[1] % DEPTH != 0:
        return (
            f"{call.x.shape[1]} channels must be a multiple of {DEPTH}, {call.weight.shape[0]} at most {MOST_CHANNELS}"
        )
    if call.residual is not None or call.channel_add is not None or call.act != "none":
        return "only a bias is added"
    if call.x.shape[0] > MOST_IMAGES:
        return f"{call.x.shape[0]} images are more than {MOST_IMAGES}"
    return None


def launch(
    x, weight, bias, stride=1, padding=0, dilation=1, groups=1, residual=None, act="none", channel_add=None
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once."""
    batch, depth, height, width = x.shape
    channels = weight.shape[0]
    out = torch.empty(
        (batch, channels, height, width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    image, taps = (dense(tensor, torch.channels_last) for tensor in (x, weight))
    shift = None if bias is None else bias.contiguous()
    load.launch(
        "sfast_conv2d_few",
        x.device,
        f"conv2d_few for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}",
        x=image,
        weight=taps,
        bias=shift,
        out=out,
        n=batch,
        height=height,
        width=width,
        c=depth,
        channels=channels,
        dtype=load.DTYPES[x.dtype],
    )
    return out.contiguous(memory_format=memory_format_of(x))
