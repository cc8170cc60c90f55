"""Triton kernel for the weight of the transposed convolution that doubles an image and convolves it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _store_row(target, left, middle, right, mask, outputs):
    """A row of taps, float32 [BLOCK_OUTPUTS, BLOCK_CHANNELS]: ``right, middle + right, left + middle, left``."""
    element = target.dtype.element_ty
    tl.store(target, tl.trans(right).to(element), mask=mask)
    tl.store(target + outputs, tl.trans(middle + right).to(element), mask=mask)
    tl.store(target + 2 * outputs, tl.trans(left + middle).to(element), mask=mask)
    tl.store(target + 3 * outputs, tl.trans(left).to(element), mask=mask)


@triton.jit
def transposed_weight_kernel(
    weight,  # [outputs, 3, 3, channels], contiguous
    transposed,  # [channels, 4, 4, outputs], contiguous, written
    outputs,
    channels,
    BLOCK_OUTPUTS: tl.constexpr,
    BLOCK_CHANNELS: tl.constexpr,
):
    """Sums of the 3x3 taps in float32, rounded once: rows ``[w2, w1 + w2, w0 + w1, w0]``, columns alike: 9 to 16.

    All loads stand before the first store, which they could not be moved across.
    """
    output = tl.program_id(0) * BLOCK_OUTPUTS + tl.arange(0, BLOCK_OUTPUTS)
    channel = tl.program_id(1) * BLOCK_CHANNELS + tl.arange(0, BLOCK_CHANNELS)
    mask = (output < outputs)[:, None] & (channel < channels)[None, :]
    source = weight + output.to(tl.int64)[:, None] * (9 * channels) + channel[None, :]
    a0 = tl.load(source, mask=mask, other=0.0).to(tl.float32)
    a1 = tl.load(source + channels, mask=mask, other=0.0).to(tl.float32)
    a2 = tl.load(source + 2 * channels, mask=mask, other=0.0).to(tl.float32)
    b0 = tl.load(source + 3 * channels, mask=mask, other=0.0).to(tl.float32)
    b1 = tl.load(source + 4 * channels, mask=mask, other=0.0).to(tl.float32)
    b2 = tl.load(source + 5 * channels, mask=mask, other=0.0).to(tl.float32)
    c0 = tl.load(source + 6 * channels, mask=mask, other=0.0).to(tl.float32)
    c1 = tl.load(source + 7 * channels, mask=mask, other=0.0).to(tl.float32)
    c2 = tl.load(source + 8 * channels, mask=mask, other=0.0).to(tl.float32)
    target = transposed + channel.to(tl.int64)[:, None] * (16 * outputs) + output[None, :]
    wanted = (channel < channels)[:, None] & (output < outputs)[None, :]
    _store_row(target, c0, c1, c2, wanted, outputs)
    _store_row(target + 4 * outputs, b0 + c0, b1 + c1, b2 + c2, wanted, outputs)
    _store_row(target + 8 * outputs, a0 + b0, a1 + b1, a2 + b2, wanted, outputs)
    _store_row(target + 12 * outputs, a0, a1, a2, wanted, outputs)
