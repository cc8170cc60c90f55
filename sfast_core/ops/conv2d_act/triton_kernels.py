"""Triton kernels for what follows a convolution (bias, sum per channel, residual, activation), and for split depths."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["pixels", "image_pixels", "channel_batch"])
def epilogue_kernel(
    x,  # [pixels, channels], contiguous: the convolution's result in NHWC, overwritten
    bias,  # [channels], read only if HAS_BIAS
    channel_add,  # [1 or B, channels], read only if HAS_CHANNEL_ADD
    residual,  # [pixels, channels], read only if HAS_RESIDUAL
    pixels,  # B * H * W
    image_pixels,  # H * W
    channel_batch,  # channels where each image has its own row of channel_add, 0 where they share one
    channels,
    HAS_BIAS: tl.constexpr,
    HAS_CHANNEL_ADD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """``x = act(x + bias + channel_add + residual)`` in float32, in place; moves x twice and the residual once."""
    pixel = (tl.program_id(0).to(tl.int64) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS))[:, None]
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    inside = channel < channels
    mask = (pixel < pixels) & inside[None, :]
    value = tl.load(x + pixel * channels + channel[None, :], mask=mask, other=0.0).to(tl.float32)
    _finish(
        value, pixel, channel, mask, inside, x, bias, channel_add, residual, image_pixels, channel_batch, channels,
        HAS_BIAS, HAS_CHANNEL_ADD, HAS_RESIDUAL, ACT,
    )  # fmt: skip


@triton.jit
def _finish(
    value, pixel, channel, mask, inside, out, bias, channel_add, residual, image_pixels, channel_batch, channels,
    HAS_BIAS: tl.constexpr, HAS_CHANNEL_ADD: tl.constexpr, HAS_RESIDUAL: tl.constexpr, ACT: tl.constexpr,
):  # fmt: skip
    """Store ``act(value + bias + channel_add + residual)`` of the pixels [P, 1] and channels [C]."""
    place = pixel * channels + channel[None, :]
    if HAS_BIAS:
        value += tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
    if HAS_CHANNEL_ADD:
        source = channel_add + (pixel // image_pixels) * channel_batch + channel[None, :]
        value += tl.load(source, mask=mask, other=0.0).to(tl.float32)
    if HAS_RESIDUAL:
        value += tl.load(residual + place, mask=mask, other=0.0).to(tl.float32)
    if ACT == "silu":
        value = value / (1.0 + tl.exp(-value))
    elif ACT == "gelu":
        value = 0.5 * value * (1.0 + tl.math.erf(value * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        value = value / (1.0 + tl.exp(-1.5957691216057308 * value * (1.0 + 0.044715 * value * value)))
    elif ACT == "relu":
        value = tl.where(value < 0.0, 0.0, value)
    tl.store(out + place, value.to(out.dtype.element_ty), mask=mask)


@triton.jit(
    do_not_specialize=[
        "pixels",
        "height",
        "width",
        "out_height",
        "out_width",
        "stride_h",
        "stride_w",
        "pad_h",
        "pad_w",
        "steps",
        "own_steps",
    ]
)
def split_convolution_kernel(
    x,  # [B, height, width, depth], contiguous: the image in NHWC
    weight,  # [channels, R, S, depth], contiguous
    parts,  # [splits, pixels, channels] float32, written
    pixels,  # of the result: B * out_height * out_width
    height,
    width,
    out_height,
    out_width,
    stride_h,
    stride_w,
    pad_h,
    pad_w,
    depth,  # channels of x, a multiple of BLOCK_K
    channels,  # of the result
    steps,  # R * S * depth / BLOCK_K
    own_steps,  # of one split
    S: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """Program (i, j, split): a tile of the convolution, summed over the split's share of the taps and of x's channels.

    A convolution as the product of the gathered image [pixels, R * S * depth] and the weight, gathered as it is read.
    On small images few tiles have the whole weight to read; split along its depth, as many programs read it as the GPU
    has multiprocessors.

    OPERAND is the dtype in which operands are multiplied: the tensors' own, except in Triton's interpreter, which can't
    multiply bfloat16.
    """
    pixel = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    channel = tl.program_id(1) * BLOCK_N + tl.arange(0, BLOCK_N)
    split = tl.program_id(2)
    k = tl.arange(0, BLOCK_K)
    live = pixel < pixels
    inside = channel < channels
    column = pixel % out_width * stride_w - pad_w
    row = pixel // out_width % out_height * stride_h - pad_h
    image = pixel // (out_width * out_height) * height
    weights = weight + channel.to(tl.int64)[:, None] * (steps * BLOCK_K) + k[None, :]
    tap_steps = depth // BLOCK_K
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for step in range(split * own_steps, min(steps, (split + 1) * own_steps)):
        tap = step // tap_steps
        y, z = row + tap // S, column + tap % S
        there = live & (y >= 0) & (y < height) & (z >= 0) & (z < width)
        source = ((image + y) * width + z) * depth + step % tap_steps * BLOCK_K
        a = tl.load(x + source[:, None] + k[None, :], mask=there[:, None], other=0.0)
        b = tl.load(weights + step * BLOCK_K, mask=inside[:, None], other=0.0)
        acc = tl.dot(a.to(OPERAND), b.to(OPERAND).T, acc)
    place = (split * pixels + pixel)[:, None] * channels + channel[None, :]
    tl.store(parts + place, acc, mask=live[:, None] & inside[None, :])


@triton.jit(do_not_specialize=["pixels", "image_pixels", "channel_batch", "splits"])
def sum_epilogue_kernel(
    parts,  # [splits, pixels, channels] float32
    out,  # [pixels, channels], written
    bias,  # [channels], read only if HAS_BIAS
    channel_add,  # [1 or B, channels], read only if HAS_CHANNEL_ADD
    residual,  # [pixels, channels], read only if HAS_RESIDUAL
    pixels,  # B * H * W
    image_pixels,  # H * W
    channel_batch,  # channels where each image has its own row of channel_add, 0 where they share one
    channels,
    splits,
    HAS_BIAS: tl.constexpr,
    HAS_CHANNEL_ADD: tl.constexpr,
    HAS_RESIDUAL: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_SPLITS: tl.constexpr,  # a power of two >= splits
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """``out = act(sum of parts + bias + channel_add + residual)`` in float32.

    All parts are loaded at once, and added in a fixed order.
    """
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    split = tl.arange(0, BLOCK_SPLITS)
    inside = channel < channels
    mask = (pixel < pixels)[:, None] & inside[None, :]
    rows = (split[:, None] * pixels + pixel[None, :])[:, :, None]
    places = rows * channels + channel[None, None, :]
    loaded = tl.load(parts + places, mask=(split < splits)[:, None, None] & mask[None, :, :], other=0.0)
    _finish(
        tl.sum(loaded, 0), pixel[:, None], channel, mask, inside,
        out, bias, channel_add, residual, image_pixels, channel_batch, channels,
        HAS_BIAS, HAS_CHANNEL_ADD, HAS_RESIDUAL, ACT,
    )  # fmt: skip
