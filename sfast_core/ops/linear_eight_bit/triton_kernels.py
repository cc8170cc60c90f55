"""Triton kernels for products of 8-bit operands with scales, bias, activation and gate in the epilogue."""

from __future__ import annotations

import triton
import triton.language as tl

from ..quantise_rows.triton_kernels import apply_act


@triton.jit
def scaled(
    acc,  # [BLOCK_M, BLOCK_N], int32 or float32
    row_scale,  # [BLOCK_M]
    scales,  # [columns] float32, or one where STEP is 0
    bias,  # [columns] or None
    cols,  # [BLOCK_N]
    columns,
    STEP: tl.constexpr,
):
    """The sums as float32 values."""
    live = cols < columns
    value = acc.to(tl.float32) * row_scale[:, None] * tl.load(scales + cols * STEP, mask=live, other=0.0)[None, :]
    if bias is not None:
        value += tl.load(bias + cols, mask=live, other=0.0).to(tl.float32)[None, :]
    return value


@triton.jit
def tile_place(tile, blocks_m, blocks_n, group_rows):
    """Tiles go down ``group_rows`` blocks of rows before the next column, so that neighbours share x and weight in L2."""
    first_m = tile // (group_rows * blocks_n) * group_rows
    group_m = min(blocks_m - first_m, group_rows)
    within = tile % (group_rows * blocks_n)
    return first_m + within % group_m, within // group_m


@triton.jit(do_not_specialize=["rows", "group_rows", "programs"])
def linear_eight_bit_tma_kernel(
    x,  # descriptor of [rows, depth], boxes of [BLOCK_M, BLOCK_K]
    weight,  # descriptor of [columns, depth], boxes of [BLOCK_N, BLOCK_K]
    gate_weight,  # likewise, or None
    row_scales,  # [rows] float32, or one where ROW_STEP is 0
    column_scales,  # [columns] float32, or one where COLUMN_STEP is 0
    gate_scales,  # likewise, or None
    bias,  # [columns] or None
    gate_bias,  # likewise
    out,  # descriptor of [rows, columns], boxes of [BLOCK_M, BLOCK_N]
    rows,
    columns,
    depth,
    group_rows,
    programs,
    ROW_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    ACT: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,  # the operands' own dtype, except in Triton's interpreter
    SUM: tl.constexpr,  # int32 or float32
    FLATTEN: tl.constexpr,
):
    """A persistent GEMM that reads through TMA: program i takes the tiles i, i + programs, ... For compute capability 9.0 and later."""
    blocks_m = tl.cdiv(rows, BLOCK_M)
    blocks_n = tl.cdiv(columns, BLOCK_N)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, programs, flatten=FLATTEN):
        block_m, block_n = tile_place(tile, blocks_m, blocks_n, group_rows)
        row = block_m * BLOCK_M
        col = block_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
        gate = tl.zeros((BLOCK_M, BLOCK_N), SUM)
        for k in range(tl.cdiv(depth, BLOCK_K)):
            a = x.load([row, k * BLOCK_K]).to(OPERAND)
            acc = tl.dot(a, weight.load([col, k * BLOCK_K]).to(OPERAND).T, acc, out_dtype=SUM)
            if gate_weight is not None:
                gate = tl.dot(a, gate_weight.load([col, k * BLOCK_K]).to(OPERAND).T, gate, out_dtype=SUM)
        r = row + tl.arange(0, BLOCK_M)
        cols = col + tl.arange(0, BLOCK_N)
        row_scale = tl.load(row_scales + r * ROW_STEP, mask=r < rows, other=0.0)
        value = scaled(acc, row_scale, column_scales, bias, cols, columns, COLUMN_STEP)
        if gate_weight is not None:
            value *= apply_act(scaled(gate, row_scale, gate_scales, gate_bias, cols, columns, COLUMN_STEP), ACT)
        else:
            value = apply_act(value, ACT)
        out.store([row, col], value.to(out.dtype))


@triton.jit(do_not_specialize=["rows", "group_rows"])
def linear_eight_bit_kernel(
    x,  # [rows, depth], contiguous
    weight,  # [columns, depth], contiguous
    gate_weight,  # likewise, or None
    row_scales,  # [rows] float32, or one where ROW_STEP is 0
    column_scales,  # [columns] float32, or one where COLUMN_STEP is 0
    gate_scales,  # likewise, or None
    bias,  # [columns] or None
    gate_bias,  # likewise
    out,  # [rows, columns], contiguous
    rows,
    columns,
    depth,
    group_rows,
    ROW_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    ACT: tl.constexpr,
    EVEN_K: tl.constexpr,  # depth is a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
    SUM: tl.constexpr,
):
    """A tile a program, read through pointers: for GPUs without TMA."""
    blocks_m = tl.cdiv(rows, BLOCK_M)
    blocks_n = tl.cdiv(columns, BLOCK_N)
    block_m, block_n = tile_place(tl.program_id(0), blocks_m, blocks_n, group_rows)
    r = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Rows and columns past the end are computed like the last ones, and not written.
    left = x + tl.minimum(r, rows - 1).to(tl.int64)[:, None] * depth + k[None, :]
    inside = tl.minimum(cols, columns - 1).to(tl.int64)[None, :] * depth + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    gate = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    for first in range(0, depth, BLOCK_K):
        if EVEN_K:
            a = tl.load(left).to(OPERAND)
            b = tl.load(weight + inside).to(OPERAND)
        else:
            a = tl.load(left, mask=k[None, :] < depth - first, other=0.0).to(OPERAND)
            b = tl.load(weight + inside, mask=k[:, None] < depth - first, other=0.0).to(OPERAND)
        acc = tl.dot(a, b, acc, out_dtype=SUM)
        if gate_weight is not None:
            if EVEN_K:
                g = tl.load(gate_weight + inside).to(OPERAND)
            else:
                g = tl.load(gate_weight + inside, mask=k[:, None] < depth - first, other=0.0).to(OPERAND)
            gate = tl.dot(a, g, gate, out_dtype=SUM)
        left += BLOCK_K
        inside += BLOCK_K
    row_scale = tl.load(row_scales + r * ROW_STEP, mask=r < rows, other=0.0)
    value = scaled(acc, row_scale, column_scales, bias, cols, columns, COLUMN_STEP)
    if gate_weight is not None:
        value *= apply_act(scaled(gate, row_scale, gate_scales, gate_bias, cols, columns, COLUMN_STEP), ACT)
    else:
        value = apply_act(value, ACT)
    target = out + r.to(tl.int64)[:, None] * columns + cols[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (cols < columns)[None, :])
