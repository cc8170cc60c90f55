"""Convolutions of small images as products split along their depth; the pass that sums the parts does all the rest.

At 8x8 the weight is most of what a convolution reads, and cuDNN's tiles are too few to read it with the whole GPU.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ...target import Target
from ..spec import Arguments
from ..triton_launch import capacity, launcher
from ..triton_operand import operand
from .constraints import why_not_channel_add, why_not_plain, why_not_residual
from .epilogue import epilogue
from .reference import ACTS, memory_format_of, out_size, pair
from .triton_kernels import split_convolution_kernel, sum_epilogue_kernel

#: Of all images of the result. Each further ROWS of them take programs from the splits: H100, us, 2x1280x8x8 20.5,
#: cuDNN 24.9; 2x1280x16x16 65.8 and 35.4.
MOST_PIXELS = 128
MOST_SPLITS = 16
FEWEST_STEPS = 4  #: of a split, or the loads are under way for longer than they are worked on
DEPTHS = (128, 64)  #: of a tile, the first that divides x's channels and of which enough stages fit into shared memory
ROWS, COLS, WARPS, STAGES = 64, 128, 4, 4  #: of a program
FEWEST_STAGES = 3  #: with two, one load alone is under way while the other is worked on
SUM_PIXELS = 2
SUM_CHANNELS = 256


class Tiling(NamedTuple):
    """A convolution's cut: tiles of ROWS pixels and COLS channels, by ``splits`` programs of ``steps`` * ``depth``.

    H100, fp16, us, without the sum: 2x1280x8x8 16.0, with 128 pixels 16.7, with 128 pixels in 13 splits of depth 64 20;
    cuDNN 23.6.
    """

    depth: int
    splits: int
    steps: int
    stages: int


def tiling(
    pixels: int, channels: int, inputs: int, taps: int, multiprocessors: int, shared_bytes: int
) -> Tiling | None:
    """As many splits as give no multiprocessor two programs; None where channels or shared memory allow no tile."""
    fitting = [
        (depth, min(STAGES, shared_bytes // (2 * (ROWS + COLS) * depth))) for depth in DEPTHS if inputs % depth == 0
    ]
    depth, stages = next((fit for fit in fitting if fit[1] >= FEWEST_STAGES), (0, 0))
    if depth == 0:
        return None
    tiles = -(-pixels // ROWS) * -(-channels // COLS)
    steps = taps * inputs // depth
    wanted = max(1, min(multiprocessors // tiles, MOST_SPLITS, steps // FEWEST_STEPS))
    own = -(-steps // wanted)
    return Tiling(depth, -(-steps // own), own, stages)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_not_plain(call):
        return reason
    if tiling(1, 1, call.x.shape[1], 1, 1, target.shared_memory_bytes) is None:
        return (
            f"x has {call.x.shape[1]} channels, not a multiple of {DEPTHS[-1]}, or {target.shared_memory_bytes} bytes"
            " of shared memory are too few"
        )
    height, width = out_size(call.x.shape, call.weight.shape, call.stride, call.padding)
    if not 0 < call.x.shape[0] * height * width <= MOST_PIXELS:
        return f"the result has {call.x.shape[0]} x {height} x {width} pixels, more than {MOST_PIXELS}"
    if max(call.x.numel(), call.weight.numel(), MOST_SPLITS * MOST_PIXELS * call.weight.shape[0]) >= 2**31:
        return "2^31 elements or more"
    out = (call.x.shape[0], call.weight.shape[0], height, width)
    if reason := why_not_residual(call.residual, out) or why_not_channel_add(
        call.channel_add, call.x.shape[0], call.weight.shape[0]
    ):
        return reason
    return None if call.act in ACTS else f"act {call.act!r} is not supported"


def launch(
    x, weight, bias, stride=1, padding=0, dilation=1, groups=1, residual=None, act="none", channel_add=None
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once."""
    (stride_h, stride_w), (pad_h, pad_w) = pair(stride), pair(padding)
    image, matrix = (tensor.contiguous(memory_format=torch.channels_last) for tensor in (x, weight))
    batch, depth, height, width = x.shape
    channels, _, rows, columns = weight.shape
    out_height, out_width = out_size(x.shape, weight.shape, stride, padding)
    out = torch.empty(
        (batch, channels, out_height, out_width), dtype=x.dtype, device=x.device, memory_format=torch.channels_last
    )
    pixels = batch * out_height * out_width
    plan = tiling(pixels, channels, depth, rows * columns, *capacity(x.device))
    assert plan is not None, "why_not has been asked"
    parts = torch.empty((plan.splits, pixels, channels), dtype=torch.float32, device=x.device)
    ending = epilogue(out, bias, channel_add, residual, act)
    launcher(split_convolution_kernel, (-(-pixels // ROWS), -(-channels // COLS), plan.splits))(
        image,
        matrix,
        parts,
        pixels,
        height,
        width,
        out_height,
        out_width,
        stride_h,
        stride_w,
        pad_h,
        pad_w,
        depth,
        channels,
        rows * columns * depth // plan.depth,
        plan.steps,
        S=columns,
        BLOCK_M=ROWS,
        BLOCK_N=COLS,
        BLOCK_K=plan.depth,
        OPERAND=operand(x),
        num_warps=WARPS,
        num_stages=plan.stages,
    )
    launcher(sum_epilogue_kernel, (-(-pixels // SUM_PIXELS), -(-channels // SUM_CHANNELS)))(
        parts,
        out,
        *ending.arguments,
        plan.splits,
        **ending.constants,
        BLOCK_SPLITS=triton.next_power_of_2(plan.splits),
        BLOCK_PIXELS=SUM_PIXELS,
        BLOCK_CHANNELS=SUM_CHANNELS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out.contiguous(memory_format=memory_format_of(x))
