"""Triton kernel that makes values of GGUF's blocks.

Each byte of a block is read where its values are needed; the cache has it then.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _byte(at, live):
    return tl.load(at, mask=live, other=0).to(tl.int32)


@triton.jit
def _half(at, live, ROUND: tl.constexpr):
    """The float16 at a byte, rounded to ROUND, in float32."""
    bits = tl.load(at.to(tl.pointer_type(tl.float16)), mask=live, other=0.0)
    return bits.to(ROUND).to(tl.float32)


@triton.jit
def _rounded(x, ROUND: tl.constexpr):
    return x.to(ROUND).to(tl.float32)


@triton.jit
def _level(q):
    """What 4 bits of IQ4_NL stand for: 16 numbers of 8 bits out of two words of 64."""
    low: tl.constexpr = 0xF6EADDCFBFAD9881  # -10 -22 -35 -49 -65 -83 -104 -127, from the highest byte
    high: tl.constexpr = 0x7159453526190D01
    word = tl.where(q < 8, tl.full(q.shape, low - (1 << 64), tl.int64), tl.full(q.shape, high, tl.int64))
    return (word >> ((q & 7) * 8)).to(tl.int8).to(tl.float32)


@triton.jit
def dequantise_blocks_kernel(
    data,  # bytes
    out,  # values, written
    blocks,
    KIND: tl.constexpr,
    BYTES: tl.constexpr,  # of a block
    GROUPS: tl.constexpr,  # of a block, each with a scale of its own
    VALUES: tl.constexpr,  # of a group
    ROUND: tl.constexpr,  # what each step is rounded to
    BLOCKS: tl.constexpr,
):
    """BLOCKS blocks a program."""
    b = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)[:, None, None]
    g = tl.arange(0, GROUPS)[None, :, None]
    v = tl.arange(0, VALUES)[None, None, :]
    live = b < blocks
    at = data + b * BYTES
    if KIND == "Q8_0":
        number = tl.load(at.to(tl.pointer_type(tl.int8)) + 2 + v, mask=live, other=0).to(tl.float32)
        value = _half(at, live, ROUND) * number
    elif KIND == "Q4_0" or KIND == "IQ4_NL":
        q = (_byte(at + 2 + (v & 15), live) >> ((v >> 4) * 4)) & 15
        value = _half(at, live, ROUND) * (_level(q) if KIND == "IQ4_NL" else (q - 8).to(tl.float32))
    elif KIND == "Q4_1":
        q = (_byte(at + 4 + (v & 15), live) >> ((v >> 4) * 4)) & 15
        value = _rounded(_half(at, live, ROUND) * q.to(tl.float32), ROUND) + _half(at + 2, live, ROUND)
    elif KIND == "Q5_0" or KIND == "Q5_1":
        BEGIN: tl.constexpr = 2 if KIND == "Q5_0" else 4
        high = (_byte(at + BEGIN + (v >> 3), live) >> (v & 7)) & 1
        q = ((_byte(at + BEGIN + 4 + (v & 15), live) >> ((v >> 4) * 4)) & 15) | (high << 4)
        if KIND == "Q5_0":
            value = _half(at, live, ROUND) * (q - 16).to(tl.float32)
        else:
            value = _rounded(_half(at, live, ROUND) * q.to(tl.float32), ROUND) + _half(at + 2, live, ROUND)
    elif KIND == "Q4_K" or KIND == "Q5_K":
        # Groups 0 to 3 have 6 bits of a byte each; 4 to 7 four bits of one, and two that those of 0 to 3 have left.
        first = _byte(at + 4 + (g & 3), live)
        second = _byte(at + 8 + (g & 3), live)
        third = _byte(at + 12 + (g & 3), live)
        scale = tl.where(g < 4, first & 63, (third & 15) | ((first >> 6) << 4)).to(tl.float32)
        least = tl.where(g < 4, second & 63, (third >> 4) | ((second >> 6) << 4)).to(tl.float32)
        NUMBERS: tl.constexpr = 16 if KIND == "Q4_K" else 48
        q = (_byte(at + NUMBERS + (g >> 1) * 32 + v, live) >> ((g & 1) * 4)) & 15
        if KIND == "Q5_K":
            q = q | (((_byte(at + 16 + v, live) >> g) & 1) << 4)
        scale = _rounded(_half(at, live, ROUND) * scale, ROUND)
        least = _rounded(_half(at + 2, live, ROUND) * least, ROUND)
        value = _rounded(scale * q.to(tl.float32), ROUND) - least
    elif KIND == "Q6_K":
        within = (g & 1) * 16 + v  # the groups are of 16 values: 8 for each half of a block, 2 for each 32 values
        part, half = (g & 7) >> 1, g >> 3
        low = (_byte(at + half * 64 + (part & 1) * 32 + within, live) >> ((part >> 1) * 4)) & 15
        high = (_byte(at + 128 + half * 32 + within, live) >> (part * 2)) & 3
        scale = tl.load(at.to(tl.pointer_type(tl.int8)) + 192 + g, mask=live, other=0).to(tl.float32)
        value = _rounded(_half(at + 208, live, ROUND) * scale, ROUND) * ((low | (high << 4)) - 32).to(tl.float32)
    elif KIND == "Q2_K":
        within, part, half = (g & 1) * 16 + v, (g & 7) >> 1, g >> 3
        q = (_byte(at + 16 + half * 32 + within, live) >> (part * 2)) & 3
        both = _byte(at + g, live)
        scale = _rounded(_half(at + 80, live, ROUND) * (both & 15).to(tl.float32), ROUND)
        least = _rounded(_half(at + 82, live, ROUND) * (both >> 4).to(tl.float32), ROUND)
        value = _rounded(scale * q.to(tl.float32), ROUND) - least
    elif KIND == "Q3_K":
        within, part, half = (g & 1) * 16 + v, (g & 7) >> 1, g >> 3
        high = (_byte(at + within, live) >> (half * 4 + part)) & 1
        q = ((_byte(at + 32 + half * 32 + within, live) >> (part * 2)) & 3) - (1 - high) * 4
        low = (_byte(at + 96 + (g & 7), live) >> ((g >> 3) * 4)) & 15
        scale = (low | (((_byte(at + 104 + (g & 3), live) >> ((g >> 2) * 2)) & 3) << 4)) - 32
        value = _rounded(_half(at + 108, live, ROUND) * scale.to(tl.float32), ROUND) * q.to(tl.float32)
    else:
        tl.static_assert(KIND == "IQ4_XS")
        low = (_byte(at + 4 + (g >> 1), live) >> ((g & 1) * 4)) & 15
        high = (_byte(at + 2 + (g >> 2), live) >> ((g & 3) * 2)) & 3
        q = (_byte(at + 8 + g * 16 + (v & 15), live) >> ((v >> 4) * 4)) & 15
        value = _rounded(_half(at, live, ROUND) * ((low | (high << 4)) - 32).to(tl.float32), ROUND) * _level(q)
    place = b * (GROUPS * VALUES) + g * VALUES + v
    tl.store(out + place, _rounded(value, ROUND).to(out.dtype.element_ty), mask=live)
