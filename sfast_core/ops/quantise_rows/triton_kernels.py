"""Triton kernels that quantise rows to 8 bits, and what comes in front: an activation, a rotation."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def sigmoid(x):
    """float32."""
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def apply_act(x, ACT: tl.constexpr):
    """x, float32, behind "none", "silu", "gelu" or "gelu_tanh"."""
    if ACT == "silu":
        return x * sigmoid(x)
    elif ACT == "gelu":
        return x * (0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        # (1 + tanh z) / 2 = 1 / (1 + e^-2z)
        return x * sigmoid(1.5957691216057308 * x * (1.0 + 0.044715 * x * x))
    else:
        return x


@triton.jit
def rotation_factor(WITHIN: tl.constexpr):
    """[16, 16] in float32: H16 without its norm, or, WITHIN 4, H4 along the diagonal.

    H4[i, j] is -1 where i + j = 3 and 1 elsewhere; H16[i, j] the product of those of both base-4 digits.
    """
    i = tl.arange(0, 16)[:, None]
    j = tl.arange(0, 16)[None, :]
    low = tl.where((i & 3) + (j & 3) == 3, -1.0, 1.0)
    if WITHIN == 16:
        return low * tl.where((i >> 2) + (j >> 2) == 3, -1.0, 1.0)
    else:
        return tl.where((i >> 2) == (j >> 2), low, 0.0)


@triton.jit
def rotate(v, ROWS: tl.constexpr, BLOCK: tl.constexpr, GROUP: tl.constexpr):
    """v [ROWS, BLOCK] in float32, groups of GROUP (16, 64, 256) channels times the regular Hadamard matrix.

    H256 is the Kronecker product of H16 with itself: 16 x 16 products along the inner 16 of each 256, then along the outer ones. For 64 the
    outer factor is H4 four times along the diagonal. Products by 1 and -1 are exact in TF32, whose inputs keep 11 bits; those of the first are
    16-bit values mostly.
    """
    if GROUP > 0:
        inner = tl.dot(tl.reshape(v, (ROWS * BLOCK // 16, 16)), rotation_factor(16), input_precision="tf32")
        if GROUP > 16:
            turned = tl.permute(tl.reshape(inner, (ROWS * BLOCK // 256, 16, 16)), (0, 2, 1))
            factor = rotation_factor(16 if GROUP == 256 else 4)
            outer = tl.dot(tl.reshape(turned, (ROWS * BLOCK // 16, 16)), factor, input_precision="tf32")
            inner = tl.permute(tl.reshape(outer, (ROWS * BLOCK // 256, 16, 16)), (0, 2, 1))
        v = tl.reshape(inner, (ROWS, BLOCK)) * (0.0625 if GROUP == 256 else 0.125 if GROUP == 64 else 0.25)
    return v


@triton.jit
def to_eight_bit(scaled, LIMIT: tl.constexpr, DTYPE: tl.constexpr):
    """float32 within about +-LIMIT to DTYPE, to nearest, ties to even (Triton's interpreter cuts float8 off instead)."""
    scaled = tl.minimum(tl.maximum(scaled, -LIMIT), LIMIT)
    if DTYPE == tl.int8:
        scaled = (scaled + 12582912.0) - 12582912.0  # 1.5 * 2^23: what is below 1 is rounded off
    return scaled.to(DTYPE)


@triton.jit
def row_scales(v, LIMIT: tl.constexpr):
    """The scale of each row of v [ROWS, BLOCK]: [ROWS]."""
    return tl.maximum(tl.max(tl.abs(v), 1) / LIMIT, 1e-30)


@triton.jit(do_not_specialize=["rows"])
def quantise_rows_kernel(
    x,  # [rows, K], or [rows, 2 K] where GATE says so; x_stride elements from row to row
    q,  # [rows, K], int8 or float8e4nv, written
    scales,  # [rows] float32, written
    rows,
    K,
    x_stride,
    ACT: tl.constexpr,  # of x, or of one half of it
    GATE: tl.constexpr,  # "": x alone; "first": act(x[:K]) * x[K:]; "second": x[:K] * act(x[K:])
    ROTATION: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,  # a power of two >= K, a multiple of 256 with a rotation
    ROWS: tl.constexpr,
):
    """ROWS rows a program, each read once and kept in registers. Moves 2 K (gated 4 K) bytes of 16-bit input and K of output a row."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)[None, :]
    live = (r < rows)[:, None] & (c < K)
    source = x + r[:, None] * x_stride + c
    v = tl.load(source, mask=live, other=0.0).to(tl.float32)
    if GATE == "first":
        v = apply_act(v, ACT) * tl.load(source + K, mask=live, other=0.0).to(tl.float32)
    elif GATE == "second":
        v = v * apply_act(tl.load(source + K, mask=live, other=0.0).to(tl.float32), ACT)
    else:
        v = apply_act(v, ACT)
    v = rotate(v, ROWS, BLOCK, ROTATION)
    scale = row_scales(v, LIMIT)
    tl.store(scales + r, scale, mask=r < rows)
    tl.store(q + r[:, None] * K + c, to_eight_bit(v * (1.0 / scale)[:, None], LIMIT, q.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["count"])
def quantise_tensor_kernel(
    x,  # [count]
    q,  # [count], float8e4nv or int8, written
    scale,  # [1] float32
    count,
    LIMIT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``q = clamp(x * (1 / scale))``, the factor and the product rounded to x's dtype as ComfyUI's fp8 layout rounds them."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    live = at < count
    v = tl.load(x + at, mask=live, other=0.0)
    factor = (1.0 / tl.load(scale)).to(v.dtype).to(tl.float32)
    product = (v.to(tl.float32) * factor).to(v.dtype).to(tl.float32)
    tl.store(q + at, to_eight_bit(product, LIMIT, q.dtype.element_ty), mask=live)


@triton.jit(do_not_specialize=["rows"])
def row_maxima_kernel(
    x,  # [rows, K], contiguous
    maxima,  # [rows] float32, written
    rows,
    K,
    BLOCK: tl.constexpr,
    ROWS: tl.constexpr,
):
    """The largest absolute value of each row."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK)[None, :]
    v = tl.load(x + r[:, None] * K + c, mask=(r < rows)[:, None] & (c < K), other=0.0).to(tl.float32)
    tl.store(maxima + r, tl.max(tl.abs(v), 1), mask=r < rows)


@triton.jit(do_not_specialize=["count", "rows", "programs"])
def quantise_by_maxima_kernel(
    x,  # [count]
    q,  # [count], written
    maxima,  # [rows] float32, of parts of x
    scale,  # [1] float32, written
    count,
    rows,
    programs,
    LIMIT: tl.constexpr,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """One scale for all of x, its largest absolute value / LIMIT: every program finds it in ``maxima``, so nothing has to wait or be zeroed.

    Rounded as :func:`quantise_tensor_kernel` does. count < 2^31. Program i takes the blocks i, i + programs, ...
    """
    most = tl.zeros((ROWS,), tl.float32)
    for first in range(0, rows, ROWS):
        r = first + tl.arange(0, ROWS)
        most = tl.maximum(most, tl.load(maxima + r, mask=r < rows, other=0.0))
    # As the host takes it: the maximum over the limit in x's dtype.
    least = (tl.max(most, 0) / LIMIT).to(x.dtype.element_ty).to(tl.float32)
    if tl.program_id(0) == 0:
        tl.store(scale, least)
    factor = (1.0 / least).to(x.dtype.element_ty).to(tl.float32)
    for first in range(tl.program_id(0) * BLOCK, count, programs * BLOCK):
        at = first + tl.arange(0, BLOCK)
        live = at < count
        v = tl.load(x + at, mask=live, other=0.0)
        product = (v.to(tl.float32) * factor).to(v.dtype).to(tl.float32)
        tl.store(q + at, to_eight_bit(product, LIMIT, q.dtype.element_ty), mask=live)
