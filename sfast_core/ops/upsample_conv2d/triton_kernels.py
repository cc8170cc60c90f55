"""Triton kernels around the four convolutions: their weights, and the image that their results make together."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def store_columns(target, left, middle, right, mask, phase_stride, channels):
    """One row of taps, float32, for the column phases 0, ``[left, middle + right]``, and 1, ``[left + middle, right]``.

    ``target`` points to the first of the two taps in phase 0.
    """
    element = target.dtype.element_ty
    tl.store(target, left.to(element), mask=mask)
    tl.store(target + channels, (middle + right).to(element), mask=mask)
    tl.store(target + phase_stride, (left + middle).to(element), mask=mask)
    tl.store(target + phase_stride + channels, right.to(element), mask=mask)


@triton.jit(do_not_specialize=["outputs"])
def phase_weights_kernel(
    weight,  # [outputs, 3, 3, channels], contiguous
    phases,  # [2, 2, outputs, 2, 2, channels], contiguous: row phase, column phase, and the weight of each
    phase_stride,  # outputs * 4 * channels
    outputs,
    channels,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """The 2x2 weights of the four phases: sums of the 3x3 weight's taps in float32, rounded once. Moves 9 + 16 values a channel.

    Rows of phase 0 are ``[w0, w1 + w2]``, of phase 1 ``[w0 + w1, w2]``, columns alike. All loads stand before the first store, which
    they could not be moved across.
    """
    output = (tl.program_id(0).to(tl.int64) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS))[:, None]
    channel = (tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS))[None, :]
    mask = (output < outputs) & (channel < channels)
    source = weight + output * (9 * channels) + channel
    a0 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    a1 = tl.load(source + channels, mask=mask, other=0.0).to(tl.float32)
    a2 = tl.load(source + 2 * channels, mask=mask, other=0.0).to(tl.float32)
    b0 = tl.load(source + 3 * channels, mask=mask, other=0.0).to(tl.float32)
    b1 = tl.load(source + 4 * channels, mask=mask, other=0.0).to(tl.float32)
    b2 = tl.load(source + 5 * channels, mask=mask, other=0.0).to(tl.float32)
    c0 = tl.load(source + 6 * channels, mask=mask, other=0.0).to(tl.float32)
    c1 = tl.load(source + 7 * channels, mask=mask, other=0.0).to(tl.float32)
    c2 = tl.load(source + 8 * channels, mask=mask, other=0.0).to(tl.float32)
    upper = phases + output * (4 * channels) + channel  # row phase 0
    lower = upper + 2 * phase_stride
    store_columns(upper, a0, a1, a2, mask, phase_stride, channels)
    store_columns(upper + 2 * channels, b0 + c0, b1 + c1, b2 + c2, mask, phase_stride, channels)
    store_columns(lower, a0 + b0, a1 + b1, a2 + b2, mask, phase_stride, channels)
    store_columns(lower + 2 * channels, c0, c1, c2, mask, phase_stride, channels)


@triton.jit(do_not_specialize=["pixels", "height", "width"])
def interleave_kernel(
    phase00,  # [B, height, width, channels], its pixels dense; the results of the other phases have the same strides
    phase01,
    phase10,
    phase11,
    bias,  # [channels], read only if HAS_BIAS
    out,  # [B, 2 * height, 2 * width, channels], contiguous
    pixels,  # B * height * width
    height,
    width,
    image_stride,
    row_stride,
    channels,
    HAS_BIAS: tl.constexpr,
    BLOCK_PIXELS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """``out[:, i::2, j::2] = phase_ij + bias``, the sum in float32. Moves each value twice; a program takes one tile of all phases."""
    pixel = tl.program_id(0) * BLOCK_PIXELS + tl.arange(0, BLOCK_PIXELS)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    inside = channel < channels
    mask = (pixel < pixels)[:, None] & inside[None, :]
    line = pixel // width  # of all images
    column = pixel % width
    image = (line // height).to(tl.int64)
    row = (line % height).to(tl.int64)
    place = (image * image_stride + row * row_stride + column * channels)[:, None] + channel[None, :]
    value00 = tl.load(phase00 + place, mask=mask, other=0.0)
    value01 = tl.load(phase01 + place, mask=mask, other=0.0)
    value10 = tl.load(phase10 + place, mask=mask, other=0.0)
    value11 = tl.load(phase11 + place, mask=mask, other=0.0)
    if HAS_BIAS:
        shift = tl.load(bias + channel, mask=inside, other=0.0).to(tl.float32)[None, :]
        value00 = value00.to(tl.float32) + shift
        value01 = value01.to(tl.float32) + shift
        value10 = value10.to(tl.float32) + shift
        value11 = value11.to(tl.float32) + shift
    element = out.dtype.element_ty
    upper = out + ((line.to(tl.int64) * (4 * width) + 2 * column) * channels)[:, None] + channel[None, :]
    lower = upper + 2 * width * channels
    tl.store(upper, value00.to(element), mask=mask)
    tl.store(upper + channels, value01.to(element), mask=mask)
    tl.store(lower, value10.to(element), mask=mask)
    tl.store(lower + channels, value11.to(element), mask=mask)
