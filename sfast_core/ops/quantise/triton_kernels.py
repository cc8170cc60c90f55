"""Triton kernels that quantise to 8 bits: rows with a scale each, rotated or not, and tensors with a given scale."""

from __future__ import annotations

import triton
import triton.language as tl

from .triton_source import load_source


@triton.jit
def rotate(v, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    """v [ROWS, BLOCK] float32, each GROUP (a power of 4) of neighbours times ConvRot's matrix, in reverse order.

    The matrix is a Kronecker power of one of size 4, which makes ``sum - 2 * v[3 - i]`` of the four ``v[i]``: a stage
    for each digit of a place, without the ``3 -``. The order that this leaves costs nothing until somebody asks for it,
    :func:`store_rows` alone.
    """
    if GROUP >= 4:
        v = _stage(v, 1, ROWS, BLOCK)
    if GROUP >= 16:
        v = _stage(v, 4, ROWS, BLOCK)
    if GROUP >= 64:
        v = _stage(v, 16, ROWS, BLOCK)
    if GROUP >= 256:
        v = _stage(v, 64, ROWS, BLOCK)
    return v * (0.0625 if GROUP == 256 else 0.125 if GROUP == 64 else 0.25 if GROUP == 16 else 1.0)


@triton.jit
def _stage(v, APART: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr):
    four = tl.reshape(v, (ROWS * BLOCK // (4 * APART), 4, APART))
    return tl.reshape(tl.sum(four, 1, keep_dims=True) - 2.0 * four, (ROWS, BLOCK))


@triton.jit
def divided(v, by, BY_HAND: tl.constexpr):
    """v / by in float32, to nearest, ``by`` being one number or one for each row, in a third of a division's
    instructions: the product with the reciprocal, put right twice by what is left over, which ``fma`` knows exactly
        (Markstein 1990). BY_HAND: Triton's interpreter has no ``fma``.
    """
    if BY_HAND:
        return tl.div_rn(v, tl.broadcast_to(by, v.shape))
    # What would leave float32's range on the way is brought nearer to 1: a power of 2 changes no other bit.
    nearer = tl.where(tl.abs(by) < 8.673617379884035e-19, 1.8446744073709552e19, 1.0)  # 2^-60, 2^64
    by *= nearer
    v *= nearer
    inverse = tl.broadcast_to(tl.div_rn(tl.zeros_like(by) + 1.0, by), v.shape)
    by = tl.broadcast_to(by, v.shape)
    first = v * inverse
    quotient = tl.math.fma(tl.math.fma(-first, by, v), inverse, first)
    quotient = tl.math.fma(tl.math.fma(-quotient, by, v), inverse, quotient)
    return tl.where(quotient == quotient, quotient, first)  # by 0, of infinity


@triton.jit
def rounded_to_int8(v):
    """v in float32 as int8, to nearest, ties to even; what is beyond -128 and 127 as these."""
    v = tl.minimum(tl.maximum(v, -128.0), 127.0)
    # 1.5 * 2^23, whose last bit is 1: what is below is rounded off
    return (v + 12582912.0).to(tl.int32, bitcast=True).to(tl.int8)


@triton.jit
def to_int8(v, limit, NARROW: tl.constexpr, GROUP: tl.constexpr, BY_HAND: tl.constexpr):
    """Rows v [ROWS, BLOCK] in float32 as int8, and the scale of each, ``limit`` being its largest absolute value.

    NARROW is the dtype that values, scales and their quotients are rounded to, as the reference says; what wasn't
    rotated, GROUP being 0, is rounded already.
    """
    scale = tl.maximum(limit * 0.007874015748031496, 1e-30)  # 1 / 127
    divisor = scale.to(NARROW).to(tl.float32)
    divisor = tl.where(divisor == 0.0, _smallest_normal(NARROW), divisor)
    value = v.to(NARROW).to(tl.float32) if GROUP else v
    if NARROW == tl.bfloat16:
        # A quotient of two 8-bit numbers is never halfway between two others, nor nearer to it than 2^-17: what rounds
        # it needs no more.
        quotient = value * tl.div_rn(tl.full(divisor.shape, 1.0, tl.float32), divisor)[:, None]
    else:
        quotient = divided(value, divisor[:, None], BY_HAND)
    return rounded_to_int8(quotient.to(NARROW).to(tl.float32)), scale


@triton.jit
def to_float8(v, LIMIT: tl.constexpr, DTYPE: tl.constexpr, BY_HAND: tl.constexpr):
    """float32 to float8, to nearest, ties to even, at most LIMIT in size.

    BY_HAND: rounded first, for Triton's interpreter cuts off.
    """
    v = tl.minimum(tl.maximum(v, -LIMIT, propagate_nan=tl.PropagateNan.ALL), LIMIT, propagate_nan=tl.PropagateNan.ALL)
    if BY_HAND:
        DROPPED: tl.constexpr = 20 if DTYPE == tl.float8e4nv else 21  # of float32's 23 bits behind the point
        SMALLEST: tl.constexpr = (
            0.015625 if DTYPE == tl.float8e4nv else 6.103515625e-05
        )  # normal number; below it all are equally far apart
        FIXED: tl.constexpr = 24576.0 if DTYPE == tl.float8e4nv else 192.0  # 1.5 * 2^23 times how far
        bits = v.to(tl.int32, bitcast=True)
        bits += (1 << (DROPPED - 1)) - 1 + ((bits >> DROPPED) & 1)
        near = ((bits >> DROPPED) << DROPPED).to(tl.float32, bitcast=True)
        v = tl.where(tl.abs(v) < SMALLEST, (v + FIXED) - FIXED, near)
    return v.to(DTYPE)


@triton.jit
def to_eight_bits(
    v, limit,
    NARROW: tl.constexpr, GROUP: tl.constexpr, BY_RANGE: tl.constexpr, LIMIT: tl.constexpr, DTYPE: tl.constexpr,
    BY_HAND: tl.constexpr,
):  # fmt: skip
    """Rows v [ROWS, BLOCK] in float32 as DTYPE, and the scale of each, ``limit`` being its largest absolute value.

    LIMIT: float8's largest, or 0.
    """
    if LIMIT > 0.0:  # Triton takes no float for a condition, its interpreter does
        scale = (limit * (1.0 / LIMIT)).to(NARROW).to(tl.float32)
        return to_float8(divided(v, scale[:, None], BY_HAND), LIMIT, DTYPE, BY_HAND), scale
    elif BY_RANGE:
        scale = tl.maximum((limit * 0.00784313725490196).to(NARROW).to(tl.float32), 1.1920928955078125e-07)  # 1 / 127.5
        quotient = v * tl.div_rn(tl.full(scale.shape, 1.0, tl.float32), scale)[:, None]
        return rounded_to_int8(quotient), scale
    else:
        return to_int8(v, limit, NARROW, GROUP, BY_HAND)


@triton.jit
def _smallest_normal(NARROW: tl.constexpr):
    return 6.103515625e-05 if NARROW == tl.float16 else 1.1754943508222875e-38


@triton.jit
def store_rows(
    q, values, r, rows, K, GROUP: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, BEGIN: tl.constexpr = 0
):
    """Write values [ROWS, BLOCK], in :func:`rotate`'s order, to rows r of q [rows, K] from column BEGIN, by 8."""
    if GROUP == 0:
        c = BEGIN + tl.arange(0, BLOCK)[None, :]
        tl.store(q + r[:, None] * K + c, values, mask=(r < rows)[:, None] & (c < K))
    else:
        eights = tl.flip(tl.reshape(values, (ROWS, BLOCK // GROUP, GROUP // 8, 8)), 3)
        row = r[:, None, None, None]
        group = BEGIN + tl.arange(0, BLOCK // GROUP)[None, :, None, None] * GROUP
        within = (GROUP // 8 - 1 - tl.arange(0, GROUP // 8)[None, None, :, None]) * 8 + tl.arange(0, 8)[
            None, None, None, :
        ]
        tl.store(q + row * K + group + within, eights, mask=(row < rows) & (group + within < K))


@triton.jit(do_not_specialize=["rows", "inner"])
def quantise_rows_kernel(
    x,  # [rows, K - front_width]
    times,  # likewise, or anything
    front,  # [rows, front_width], or anything
    q,  # [rows, K] of 8 bits, written
    scales,  # [rows] float32, written
    rows,
    K,
    front_width, inner, x_outer, x_inner, times_outer, times_inner, front_outer, front_inner,  # as load_source has them
    ACT: tl.constexpr,
    TIMES: tl.constexpr,
    FRONT: tl.constexpr,
    STEPS: tl.constexpr,
    BY_HAND: tl.constexpr,
    GROUP: tl.constexpr,  # 16, 64 or 256, which divides K; 0: not rotated
    BY_RANGE: tl.constexpr,
    LIMIT: tl.constexpr,  # float8's largest; 0 of int8
    NARROW: tl.constexpr,  # x's dtype
    BLOCK: tl.constexpr,  # a power of two, a multiple of GROUP
    TAIL: tl.constexpr,  # likewise, BLOCK + TAIL >= K; or 0
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program, each read once and kept in registers. Moves the bytes of what is given and of q once."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)[None, :]
    v = load_source(
        x, times, front, r[:, None], c, (r < rows)[:, None] & (c < K), front_width, inner,
        x_outer, x_inner, times_outer, times_inner, front_outer, front_inner, ACT, TIMES, FRONT, STEPS, NARROW, BY_HAND,
    )  # fmt: skip
    v = rotate(v, GROUP, ROWS, BLOCK)
    limit = tl.max(tl.abs(v), 1)
    if TAIL:
        c = BLOCK + tl.arange(0, TAIL)[None, :]
        w = load_source(
            x, times, front, r[:, None], c, (r < rows)[:, None] & (c < K), front_width, inner,
            x_outer, x_inner, times_outer, times_inner, front_outer, front_inner,
            ACT, TIMES, FRONT, STEPS, NARROW, BY_HAND,
        )  # fmt: skip
        w = rotate(w, GROUP, ROWS, TAIL)
        limit = tl.maximum(limit, tl.max(tl.abs(w), 1))
        ends, _ = to_eight_bits(w, limit, NARROW, GROUP, BY_RANGE, LIMIT, q.dtype.element_ty, BY_HAND)
        store_rows(q, ends, r, rows, K, GROUP, ROWS, TAIL, BLOCK)
    values, scale = to_eight_bits(v, limit, NARROW, GROUP, BY_RANGE, LIMIT, q.dtype.element_ty, BY_HAND)
    tl.store(scales + r, scale, mask=r < rows)
    store_rows(q, values, r, rows, K, GROUP, ROWS, BLOCK)


@triton.jit(do_not_specialize=["inner"])
def quantise_tensor_kernel(
    x,  # [rows, K - front_width]
    times,  # likewise, or anything
    front,  # [rows, front_width], or anything
    q,  # [rows, K] float8, written
    scale,  # [1] float32
    copy,  # likewise, written: the scale again
    K,  # specialised: 16 bytes at a time only where the end is known to be a multiple of them
    front_width, inner, x_outer, x_inner, times_outer, times_inner, front_outer, front_inner,  # as load_source has them
    ACT: tl.constexpr,
    TIMES: tl.constexpr,
    FRONT: tl.constexpr,
    STEPS: tl.constexpr,
    BY_HAND: tl.constexpr,
    LIMIT: tl.constexpr,
    NARROW: tl.constexpr,  # x's dtype
    BLOCK: tl.constexpr,
):  # fmt: skip
    """``q = x / scale``, both in float32, rounded once. A program takes BLOCK columns of a row."""
    blocks = tl.cdiv(K, BLOCK)
    r = (tl.program_id(0) // blocks).to(tl.int64)
    c = (tl.program_id(0) % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = c < K
    v = load_source(
        x, times, front, r, c, live, front_width, inner,
        x_outer, x_inner, times_outer, times_inner, front_outer, front_inner, ACT, TIMES, FRONT, STEPS, NARROW, BY_HAND,
    )  # fmt: skip
    divisor = tl.load(scale)
    if tl.program_id(0) == 0:
        tl.store(copy, divisor)
    quotient = divided(v, divisor, BY_HAND)
    tl.store(q + r * K + c, to_float8(quotient, LIMIT, q.dtype.element_ty, BY_HAND), mask=live)
