"""A convolution and all that follows it in one kernel of the CUDA extension, on Hopper: the result is written once.

H100, fp16, us: 2x1920x64x64 to 640 channels 234, cuDNN 258; 2x1280x32x32 with a residual 85, cuDNN and a pass behind it
95. The kernels are in ``csrc/conv2d.cu``; :mod:`.tiling` says how they are used.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from ...native import load
from ...target import Target
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_channel_add, why_not_plain, why_not_residual
from .reference import IntOrPair, memory_format_of, out_size, pair
from .tiling import DEPTH, MOST_BLOCKS, Convolution, Tiling, best_tiling

MOST_TAPS, MOST_STRIDE, MOST_PADDING = 16, 8, 16  #: in either direction
MOST = 2**31 - 2**11  #: pixels of x and of the result, and values of the weight: coordinates are 32-bit


class Shortcut(NamedTuple):
    """An image of the result's size, in one part or two, whose 1x1 convolution is added."""

    image: torch.Tensor  #: [B, D, H', W']
    weight: torch.Tensor  #: [O, D + D', 1, 1]
    tail: torch.Tensor | None  #: [B, D', H', W']

    @property
    def channels(self) -> int:
        """Of both parts."""
        return self.weight.shape[1]


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_plain(call):
        return reason
    if call.x.shape[1] % DEPTH != 0 or call.weight.shape[0] % 8 != 0:
        return f"{call.x.shape[1]} channels must be a multiple of {DEPTH}, {call.weight.shape[0]} of 8"
    if (
        max(call.weight.shape[2:]) > MOST_TAPS
        or max(pair(call.stride)) > MOST_STRIDE
        or max(pair(call.padding)) > MOST_PADDING
    ):
        return (
            f"a kernel of {list(call.weight.shape[2:])}, strides of {pair(call.stride)} and paddings of"
            f" {pair(call.padding)} are too much"
        )
    height, width = out_size(call.x.shape, call.weight.shape, call.stride, call.padding)
    if height <= 0 or width <= 0 or call.x.shape[0] * height * width > MOST:
        return f"the result has {call.x.shape[0]} x {height} x {width} pixels"
    if call.x.numel() // call.x.shape[1] > MOST or call.weight.numel() > MOST:
        return (
            f"x of {list(call.x.shape)} or weight of {list(call.weight.shape)} is larger than 32-bit coordinates reach"
        )
    out = (call.x.shape[0], call.weight.shape[0], height, width)
    if reason := why_not_residual(call.residual, out) or why_not_channel_add(
        call.channel_add, call.x.shape[0], call.weight.shape[0]
    ):
        return reason
    return None if call.act in load.ACTS else f"act {call.act!r} is not supported"


def launch(
    x, weight, bias, stride=1, padding=0, dilation=1, groups=1, residual=None, act="none", channel_add=None
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once."""
    return launch_tiled(best(x, weight, stride, padding), x, weight, bias, stride, padding, residual, act, channel_add)


def best(
    x: torch.Tensor, weight: torch.Tensor, stride: IntOrPair, padding: IntOrPair, shortcut_channels: int = 0
) -> Tiling:
    """The best cut for these, :func:`why_not` having nothing against them."""
    return _tiling(x.device, tuple(x.shape), tuple(weight.shape), pair(stride), pair(padding), shortcut_channels)


def launch_tiled(
    tiling: Tiling,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair,
    padding: IntOrPair,
    residual: torch.Tensor | None,
    act: str,
    channel_add: torch.Tensor | None,
    shortcut: Shortcut | None = None,
) -> torch.Tensor:
    """As :func:`launch`, cut as told; the 1x1 convolution of a ``shortcut`` is added before the activation."""
    batch, depth, height, width = x.shape
    channels, _, tap_rows, tap_columns = weight.shape
    out_height, out_width = out_size(x.shape, weight.shape, stride, padding)
    out = torch.empty(
        (batch, channels, out_height, out_width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    image, taps = (dense(tensor, torch.channels_last) for tensor in (x, weight))
    added = None if residual is None else dense(residual, torch.channels_last)
    joined, tail, joined_weight = _parts(shortcut)
    column_sums, image_sums = (None if tensor is None else dense(tensor) for tensor in (bias, channel_add))
    stride_h, stride_w = pair(stride)
    pad_h, pad_w = pair(padding)
    load.launch(
        "sfast_conv2d",
        x.device,
        f"conv2d for x {tuple(x.shape)}, weight {tuple(weight.shape)} {x.dtype}",
        x=image,
        weight=taps,
        bias=column_sums,
        channel_add=image_sums,
        channel_add_stride=0 if image_sums is None or image_sums.shape[0] == 1 else channels,
        residual=added,
        shortcut=joined,
        shortcut_c=_channels(joined),
        tail=tail,
        tail_c=_channels(tail),
        shortcut_weight=joined_weight,
        out=out,
        n=batch,
        height=height,
        width=width,
        c=depth,
        channels=channels,
        tap_rows=tap_rows,
        tap_columns=tap_columns,
        stride_h=stride_h,
        stride_w=stride_w,
        pad_h=pad_h,
        pad_w=pad_w,
        act=load.ACTS[act],
        dtype=load.DTYPES[x.dtype],
        **tiling._asdict(),
    )
    return out.contiguous(memory_format=memory_format_of(x))


def _parts(shortcut: Shortcut | None) -> tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]:
    """The image, the tail and the weight as the kernel reads them."""
    if shortcut is None:
        return None, None, None
    image, tail = (
        None if tensor is None else dense(tensor, torch.channels_last) for tensor in (shortcut.image, shortcut.tail)
    )
    return image, tail, dense(shortcut.weight.flatten(1))


def _channels(image: torch.Tensor | None) -> int:
    return 0 if image is None else image.shape[1]


@functools.cache
def _tiling(
    device: torch.device,
    x: tuple[int, ...],
    weight: tuple[int, ...],
    stride: tuple[int, int],
    padding: tuple[int, int],
    shortcut_channels: int,
) -> Tiling:
    """The best cut on ``device`` for an image and a weight of these shapes, and a shortcut of so many channels."""
    height, width = out_size(x, weight, stride, padding)
    same_size = weight[2:] == (3, 3) and stride == padding == (1, 1)
    depths = x[1] // DEPTH, shortcut_channels // DEPTH
    convolution = Convolution(x[0] * height * width, weight[0], weight[2] * weight[3], *depths, same_size)
    return best_tiling_on(device, convolution, x[0], height, width)


def best_tiling_on(
    device: torch.device, convolution: Convolution, images: int, height: int, width: int, most_splits: int = MOST_BLOCKS
) -> Tiling:
    """The best cut on ``device`` for images of this size; at most ``most_splits`` blocks share a tile's depth."""
    count = load.library().sfast_conv2d_clusters

    def fitting(tiling: Tiling) -> int:
        if tiling.splits > most_splits:
            return 0
        clusters: int = count(images, height, width, tiling.rows, tiling.columns, tiling.window, tiling.blocks)
        return clusters

    with torch.cuda.device(device):
        found = best_tiling(convolution, fitting, torch.cuda.get_device_properties(device).multi_processor_count)
    assert found is not None, "why_not has been asked"
    return found
