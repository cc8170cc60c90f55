"""Triton kernel for what follows a convolution: bias, a sum per channel, a residual and an activation, in place."""

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
    place = pixel * channels + channel[None, :]
    value = tl.load(x + place, mask=mask, other=0.0).to(tl.float32)
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
    tl.store(x + place, value.to(x.dtype.element_ty), mask=mask)
