"""Triton kernels for products with a weight of 8 bits, scales and bias in the epilogue, and one that dequantises it."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def tile_place(tile, blocks_m, blocks_n, group_rows):
    """Tiles go down ``group_rows`` blocks of rows before the next column: neighbours share x and weight in L2."""
    first_m = tile // (group_rows * blocks_n) * group_rows
    group_m = min(blocks_m - first_m, group_rows)
    within = tile % (group_rows * blocks_n)
    return first_m + within % group_m, within // group_m


@triton.jit
def scaled(
    acc, row_scales, column_scales, bias, r, cols, rows, columns, ROW_STEP: tl.constexpr, COLUMN_STEP: tl.constexpr
):
    """The sums acc of the rows r and columns cols as float32 values."""
    factor = tl.load(column_scales + cols * COLUMN_STEP, mask=cols < columns, other=0.0)[None, :]
    if row_scales is not None:
        factor = tl.load(row_scales + r * ROW_STEP, mask=r < rows, other=0.0)[:, None] * factor
    value = acc.to(tl.float32) * factor
    if bias is not None:
        value += tl.load(bias + cols, mask=cols < columns, other=0.0).to(tl.float32)[None, :]
    return value


@triton.jit(do_not_specialize=["rows", "group_rows", "programs"])
def scaled_linear_tma_kernel(
    x,  # descriptor of [rows, depth], boxes of [BLOCK_M, BLOCK_K]
    weight,  # descriptor of [columns, depth], boxes of [BLOCK_N, BLOCK_K]
    row_scales,  # [rows] float32, or one where ROW_STEP is 0
    column_scales,  # [columns] float32, or one where COLUMN_STEP is 0
    bias,  # [columns] or None
    out,  # descriptor of [rows, columns], boxes of [BLOCK_M, BLOCK_N]
    rows,
    columns,
    depth,
    group_rows,
    programs,
    ROW_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,  # the operands' own dtype, except in Triton's interpreter
):
    """A persistent GEMM that reads through TMA: program i takes the tiles i, i + programs, ...

    Float8, for compute capability 9.0 and later.
    """
    blocks_m = tl.cdiv(rows, BLOCK_M)
    blocks_n = tl.cdiv(columns, BLOCK_N)
    for tile in tl.range(tl.program_id(0), blocks_m * blocks_n, programs, flatten=True):
        block_m, block_n = tile_place(tile, blocks_m, blocks_n, group_rows)
        row = block_m * BLOCK_M
        col = block_n * BLOCK_N
        acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
        for k in range(tl.cdiv(depth, BLOCK_K)):
            acc = tl.dot(x.load([row, k * BLOCK_K]).to(OPERAND), weight.load([col, k * BLOCK_K]).to(OPERAND).T, acc)
        r = row + tl.arange(0, BLOCK_M)
        cols = col + tl.arange(0, BLOCK_N)
        value = scaled(acc, row_scales, column_scales, bias, r, cols, rows, columns, ROW_STEP, COLUMN_STEP)
        out.store([row, col], value.to(out.dtype))


@triton.jit(do_not_specialize=["rows", "group_rows"])
def scaled_linear_kernel(
    x,  # [rows, depth], contiguous
    weight,  # [columns, depth], contiguous
    row_scales,  # [rows] float32, or one where ROW_STEP is 0; None: x isn't scaled
    column_scales,  # [columns] float32, or one where COLUMN_STEP is 0
    bias,  # [columns] or None
    out,  # [rows, columns], contiguous
    rows,
    columns,
    depth,
    group_rows,
    ROW_STEP: tl.constexpr,
    COLUMN_STEP: tl.constexpr,
    EVEN_K: tl.constexpr,  # depth is a multiple of BLOCK_K
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,  # in which both are multiplied
    SUM: tl.constexpr,  # int32 or float32
):
    """A tile a program, read through pointers: for any GPU.

    A weight of 8 bits becomes x's 16 exactly, its scales come after the sum.
    """
    blocks_m = tl.cdiv(rows, BLOCK_M)
    blocks_n = tl.cdiv(columns, BLOCK_N)
    block_m, block_n = tile_place(tl.program_id(0), blocks_m, blocks_n, group_rows)
    r = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    cols = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, BLOCK_K)
    # Rows and columns past the end are computed like the last ones, and not written.
    left = x + tl.minimum(r, rows - 1).to(tl.int64)[:, None] * depth + k[None, :]
    right = weight + tl.minimum(cols, columns - 1).to(tl.int64)[None, :] * depth + k[:, None]
    acc = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    for first in range(0, depth, BLOCK_K):
        if EVEN_K:
            a, b = tl.load(left), tl.load(right)
        else:
            a = tl.load(left, mask=k[None, :] < depth - first, other=0.0)
            b = tl.load(right, mask=k[:, None] < depth - first, other=0.0)
        acc = tl.dot(a.to(OPERAND), b.to(OPERAND), acc, out_dtype=SUM)
        left += BLOCK_K
        right += BLOCK_K
    value = scaled(acc, row_scales, column_scales, bias, r, cols, rows, columns, ROW_STEP, COLUMN_STEP)
    target = out + r.to(tl.int64)[:, None] * columns + cols[None, :]
    tl.store(target, value.to(out.dtype.element_ty), mask=(r < rows)[:, None] & (cols < columns)[None, :])


@triton.jit
def dequantise_kernel(
    weight,  # [columns, depth], contiguous
    scales,  # [columns] float32, or one where STEP is 0
    out,  # as weight, of 16 bits, written
    depth,
    STEP: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``out = weight * scales`` in float32, rounded once; a program has BLOCK numbers of a row."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    live = at < depth
    value = tl.load(weight + row * depth + at, mask=live, other=0.0).to(tl.float32) * tl.load(scales + row * STEP)
    tl.store(out + row * depth + at, value.to(out.dtype.element_ty), mask=live)
