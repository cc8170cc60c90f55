"""The Triton kernel of ``norm_quantise``."""

from __future__ import annotations

import triton
import triton.language as tl

from ..quantise.triton_kernels import divided, rotate, store_rows, to_eight_bits, to_float8
from ..triton_rows import image_and_part


@triton.jit
def _rounded(v, NARROW: tl.constexpr):
    return v.to(NARROW).to(tl.float32)


@triton.jit(do_not_specialize=["rows", "L", "part", "last"])
def norm_quantise_kernel(
    x,  # [rows, C]
    residual,  # [rows, C] or None
    x_weight,  # [C] or None; only with a residual
    x_bias,  # likewise
    gate,  # [B or 1, P or 1, C], or None; likewise
    weight,  # [C] or None
    bias,  # [C] or None
    scale,  # [B or 1, P or 1, C], or None
    shift,  # likewise
    total,  # [rows, C], written; None where residual is None
    q,  # [rows, C], written
    given,  # [1] float32, of float8
    factors,  # [rows] float32, or [1] of float8, written
    rows,
    L,  # rows of an image
    C,
    part,  # rows that have one of several of a modulation; the last has all that are left
    last,  # P - 1
    gate_image, gate_part, scale_image, scale_part, shift_image, shift_part,  # strides; 0: all have one
    eps,
    offset,  # added to the weight
    RMS: tl.constexpr,  # else LayerNorm
    NARROW: tl.constexpr,  # x's dtype
    GROUP: tl.constexpr,  # that is rotated, 16, 64 or 256, which divides C; 0: not rotated
    BY_RANGE: tl.constexpr,  # see to_eight_bits
    LIMIT: tl.constexpr,  # float8's largest; 0 of int8
    BY_HAND: tl.constexpr,  # see to_float8
    BLOCK: tl.constexpr,  # a power of two >= C, a multiple of GROUP
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program, in registers throughout.

    Float32 arithmetic; LayerNorm's variance is taken from deviations, not from squares.

    Bytes moved: x, residual, total and q once each, and a token's own modulation; one of many tokens stays in L2.
    """
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)[None, :]
    live = (r < rows)[:, None] & (c < C)
    offsets = r[:, None] * C + c
    image, of = image_and_part(r[:, None], L, part, last)
    # All loads come before the first reduction, behind whose barrier they would wait for it, and keep the width that
    # they have in memory.
    s = tl.load(x + offsets, mask=live, other=0.0)
    if weight is not None:
        weights = tl.load(weight + c, mask=c < C, other=0.0)
    if bias is not None:
        biases = tl.load(bias + c, mask=c < C, other=0.0)
    if scale is not None:
        scales = tl.load(scale + image * scale_image + of * scale_part + c, mask=live, other=0.0)
    if shift is not None:
        shifts = tl.load(shift + image * shift_image + of * shift_part + c, mask=live, other=0.0)
    if residual is not None:
        kept = tl.load(residual + offsets, mask=live, other=0.0)
        if gate is not None:
            gates = tl.load(gate + image * gate_image + of * gate_part + c, mask=live, other=0.0)
        v = s.to(tl.float32)
        if x_bias is not None:
            v += tl.load(x_bias + c, mask=c < C, other=0.0).to(tl.float32)
        if x_weight is not None:
            x_weights = tl.load(x_weight + c, mask=c < C, other=0.0).to(tl.float32)
            v = _rounded(v * tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None] * x_weights, NARROW)
        if gate is not None:
            v *= gates.to(tl.float32)
            if RMS:
                v = _rounded(v, NARROW)
        s = (v + kept.to(tl.float32)).to(NARROW)
        tl.store(total + offsets, s, mask=live)
    v = s.to(tl.float32)
    if not RMS:
        mean = tl.sum(v, 1) / C
        v = tl.where(live, v - mean[:, None], 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None]
    if weight is not None:
        v *= weights.to(tl.float32) + offset
    if bias is not None:
        v += biases.to(tl.float32)
    if RMS:
        v = _rounded(v, NARROW)
    if scale is not None:
        factor = 1.0 + scales.to(tl.float32)
        if RMS:
            v = _rounded(v * _rounded(factor, NARROW), NARROW)
        else:
            v *= factor
    if shift is not None:
        v += shifts.to(tl.float32)
    v = _rounded(v, NARROW)
    if given is None:
        v = rotate(v, GROUP, ROWS, BLOCK)
        values, by_row = to_eight_bits(
            v, tl.max(tl.abs(v), 1), NARROW, GROUP, BY_RANGE, LIMIT, q.dtype.element_ty, BY_HAND
        )
        tl.store(factors + r, by_row, mask=r < rows)
        store_rows(q, values, r, rows, C, GROUP, ROWS, BLOCK)
    else:
        divisor = tl.load(given)
        if tl.program_id(0) == 0:
            tl.store(factors, divisor)
        quotient = divided(v, divisor, BY_HAND)
        tl.store(q + offsets, to_float8(quotient, LIMIT, q.dtype.element_ty, BY_HAND), mask=live)
