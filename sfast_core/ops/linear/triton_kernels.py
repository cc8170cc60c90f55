"""Triton kernels for GEGLU and SwiGLU: the gate alone, and the whole linear layer with the gate in its epilogue."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def gate_factor(x, KIND: tl.constexpr):
    """What an activation multiplies x (float32) with: the sigmoid where KIND is "silu", else GELU's normal cdf.

    KIND "erf": ``(1 + erf(x / sqrt 2)) / 2``. "tanh": its tanh approximation. "polynomial": ``1/2 + c * P(c * c)`` with
    c = x held within +-4.404 and P of degree 8, fitted to make ``|x| * error`` small: 4.5e-5 at most, where float16
    rounds values near 1 by up to 2.4e-4. The bounds are chosen so that with fused multiply-adds it ends at 0 and 1 to
    1e-7 (0 to 1e-10). 13 instructions, no branch.
    """
    if KIND == "silu":
        return 1.0 / (1.0 + tl.exp(-x))
    elif KIND == "tanh":
        # (1 + tanh z) / 2 = 1 / (1 + e^-2z)
        return 1.0 / (1.0 + tl.exp(-1.5957691216057308 * x * (1.0 + 0.044715 * x * x)))
    elif KIND == "erf":
        return 0.5 + 0.5 * tl.math.erf(x * 0.7071067811865476)
    else:
        c = tl.minimum(tl.maximum(x, -4.404027938842773), 4.404027938842773)
        t = c * c
        p = 3.5694298211597086e-11 * t - 3.754049515691804e-09
        p = p * t + 1.7408476082891866e-07
        p = p * t - 4.724869086203398e-06
        p = p * t + 8.429302397416905e-05
        p = p * t - 0.0010549925500527024
        p = p * t + 0.009643028490245342
        p = p * t - 0.06607642769813538
        p = p * t + 0.3987616002559662
        return 0.5 + p * c


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    hidden,  # [rows, 2 * inner], contiguous
    out,  # [rows, inner], contiguous
    rows,
    inner,
    KIND: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    BLOCK_COLS: tl.constexpr,
):
    """``out = hidden[:, :inner] * act(hidden[:, inner:])`` in float32, or with the gate's half first.

    Moves 3 * inner values a row; a program takes one tile.
    """
    row = (tl.program_id(0).to(tl.int64) * BLOCK_ROWS + tl.arange(0, BLOCK_ROWS))[:, None]
    col = (tl.program_id(1) * BLOCK_COLS + tl.arange(0, BLOCK_COLS))[None, :]
    mask = (row < rows) & (col < inner)
    source = hidden + row * (2 * inner) + col
    value = tl.load(source + (inner if GATE_FIRST else 0), mask=mask, other=0.0).to(tl.float32)
    gate = tl.load(source + (0 if GATE_FIRST else inner), mask=mask, other=0.0).to(tl.float32)
    result = value * gate * gate_factor(gate, KIND)
    tl.store(out + row * inner + col, result.to(out.dtype.element_ty), mask=mask)


@triton.jit(do_not_specialize=["rows", "inner", "depth", "group_rows", "programs"])
def linear_geglu_kernel(
    x,  # descriptor of [rows, depth], boxes of [BLOCK_M, BLOCK_K]
    weight,  # descriptor of [2, inner, depth] (value, gate; GATE_FIRST: gate, value), boxes of [2, BLOCK_H, BLOCK_K]
    bias,  # [2 * inner], read only if HAS_BIAS
    out,  # descriptor of [rows, inner], boxes of [BLOCK_M, BLOCK_H]
    rows,
    inner,
    depth,
    group_rows,
    programs,
    KIND: tl.constexpr,
    GATE_FIRST: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_H: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """``out = (x @ value.T + b) * act(x @ gate.T + b')`` in one persistent GEMM: tiles i, i + programs, ... each.

    One box of the 3-D descriptor brings BLOCK_H value rows and the BLOCK_H gate rows that belong to them side by side
    into shared memory, out of the plain weight. There they are one operand of 2 * BLOCK_H rows, so that one wgmma
    (m64n256k16 for BLOCK_H = 128) computes both, and its accumulator holds column c of the value and of the gate in the
    same thread: splitting it moves nothing. Tiles go down ``group_rows`` blocks of rows before the next column, so that
    neighbours share x and weight in L2. Ends of rows, columns and depth are the descriptors' affair: they read zeros
    and do not write.

    OPERAND is the dtype in which operands are multiplied: the tensors' own, except in Triton's interpreter, which can't
    multiply bfloat16.
    """
    blocks_m = tl.cdiv(rows, BLOCK_M)
    blocks_n = tl.cdiv(inner, BLOCK_H)
    blocks_k = tl.cdiv(depth, BLOCK_K)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, programs, flatten=True):
        first_m = tile // (group_rows * blocks_n) * group_rows
        group_m = min(blocks_m - first_m, group_rows)
        in_group = tile % (group_rows * blocks_n)
        row = (first_m + in_group % group_m) * BLOCK_M
        col = in_group // group_m * BLOCK_H
        acc = tl.zeros((BLOCK_M, 2 * BLOCK_H), tl.float32)
        for k in range(blocks_k):
            a = x.load([row, k * BLOCK_K]).to(OPERAND)
            b = weight.load([0, col, k * BLOCK_K]).reshape(2 * BLOCK_H, BLOCK_K).to(OPERAND)
            acc = tl.dot(a, b.T, acc)
        first, second = tl.split(acc.reshape(BLOCK_M, 2, BLOCK_H).permute(0, 2, 1))
        if HAS_BIAS:
            cols = col + tl.arange(0, BLOCK_H)
            first += tl.load(bias + cols, mask=cols < inner, other=0.0).to(tl.float32)[None, :]
            second += tl.load(bias + inner + cols, mask=cols < inner, other=0.0).to(tl.float32)[None, :]
        gate = first if GATE_FIRST else second
        out.store([row, col], (first * second * gate_factor(gate, KIND)).to(out.dtype))
