"""Triton kernels of a mixture of experts: which rows each expert gets, and products of these rows."""

from __future__ import annotations

import triton
import triton.language as tl

from ..linear.triton_kernels import gate_factor
from ..quantise.triton_kernels import divided, to_float8


@triton.jit(do_not_specialize=["pairs"])
def route_kernel(
    indices,  # [pairs] int64: the expert of each pair of a token and a choice
    places,  # [experts, pairs] int32, written: an expert's pairs, in order, as far as there are
    counts,  # [experts] int32, written
    pairs,
    BLOCK: tl.constexpr,
):
    """A program an expert reads all indices: some ten thousand, which lie in L2. No atomics, so the order is fixed."""
    expert = tl.program_id(0)
    count = tl.zeros((), tl.int32)
    for first in range(0, pairs, BLOCK):
        pair = first + tl.arange(0, BLOCK)
        mine = (tl.load(indices + pair, mask=pair < pairs, other=-1) == expert).to(tl.int32)
        behind = tl.cumsum(mine, 0)
        tl.store(places + expert.to(tl.int64) * pairs + count + behind - 1, pair, mask=mine != 0)
        count += tl.sum(mine, 0)
    tl.store(counts + expert, count)


@triton.jit
def expert_scales(
    row_scales, weight_scales, row, expert, cols, width, live, ROW_STEP: tl.constexpr, BY_FEATURE: tl.constexpr
):
    """What the sums of quantised rows [BLOCK_M] and of an expert's features [BLOCK_N] are to be multiplied by."""
    feature = expert * width + cols if BY_FEATURE else expert + tl.zeros_like(cols)
    factor = tl.load(weight_scales + feature, mask=cols < width, other=0.0)[None, :]
    if row_scales is not None:
        factor = tl.load(row_scales + row * ROW_STEP, mask=live, other=0.0)[:, None] * factor
    return factor


@triton.jit(do_not_specialize=["pairs", "group_rows", "blocks_m"])
def expert_linear_kernel(
    x,  # [pairs // REPEAT, DEPTH], contiguous
    weight,  # [EXPERTS * width, DEPTH], contiguous
    gate,  # as weight, or None
    bias,  # [EXPERTS * width], or None
    scores,  # [pairs], or None
    row_scales,  # of quantised x: [pairs // REPEAT] float32, or one where ROW_STEP is 0; None: x isn't quantised
    weight_scales,  # of a quantised weight: [EXPERTS * width] float32, or [EXPERTS] unless BY_FEATURE; None
    gate_scales,  # likewise
    out_scale,  # one float32: the result is quantised, LIMIT at most in size; None
    places,  # [EXPERTS, pairs] int32
    counts,  # [EXPERTS] int32
    out,  # [pairs, width], contiguous
    pairs,
    width,
    depth,
    blocks_m,  # no fewer than all experts' blocks of rows together
    group_rows,
    EXPERTS: tl.constexpr,
    REPEAT: tl.constexpr,  # pairs that read one row of x
    KIND: tl.constexpr,  # the activation as gate_factor knows it, "relu" or "none"
    ROW_STEP: tl.constexpr,
    BY_FEATURE: tl.constexpr,
    LIMIT: tl.constexpr,
    BY_HAND: tl.constexpr,  # as to_float8 has it
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,  # in which rows and weights are multiplied
    SUM: tl.constexpr,  # int32 or float32
):
    """``out[p] = act(x[p // REPEAT] @ weight[e].T + bias[e])``, e being the expert of pair p; with a gate ``act(x @
    gate[e].T) * (x @ weight[e].T)``; with scores times scores[p].

    A program computes a tile of one expert's pairs: which expert's, it counts out of ``counts``, so that the grid is as
    large for any choice, and what is beyond the last block returns. Tiles go down ``group_rows`` blocks of rows before
    the next column, so that neighbours share rows and weights in L2. What follows the sums is float32, rounded once.
    """
    blocks_n = tl.cdiv(width, BLOCK_N)
    first_m = tl.program_id(0) // (group_rows * blocks_n) * group_rows
    group_m = tl.minimum(blocks_m - first_m, group_rows)
    in_group = tl.program_id(0) % (group_rows * blocks_n)
    block = first_m + in_group % group_m
    col = in_group // group_m * BLOCK_N

    expert = tl.zeros((), tl.int32)
    before = tl.zeros((), tl.int32)  # blocks of the experts in front of this one
    total = tl.zeros((), tl.int32)
    for e in tl.static_range(EXPERTS):
        blocks = tl.cdiv(tl.load(counts + e), BLOCK_M)
        here = (block >= total) & (block < total + blocks)
        expert = tl.where(here, e, expert)
        before = tl.where(here, total, before)
        total += blocks
    if block >= total:
        return
    place = (block - before) * BLOCK_M + tl.arange(0, BLOCK_M)
    live = place < tl.load(counts + expert)
    pair = tl.load(places + expert.to(tl.int64) * pairs + place, mask=live, other=0).to(tl.int64)

    cols = col + tl.arange(0, BLOCK_N)
    inside = cols < width
    rows_of_weight = (expert.to(tl.int64) * width + cols) * depth
    k = tl.arange(0, BLOCK_K)
    row = pair // REPEAT
    rows = x + row * depth
    sums = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    gate_sums = tl.zeros((BLOCK_M, BLOCK_N), SUM)
    for start in range(0, depth, BLOCK_K):
        deep = start + k < depth
        a = tl.load(rows[:, None] + (start + k)[None, :], mask=live[:, None] & deep[None, :], other=0.0).to(OPERAND)
        mask = inside[None, :] & deep[:, None]
        b = tl.load(weight + rows_of_weight[None, :] + (start + k)[:, None], mask=mask, other=0.0).to(OPERAND)
        sums = tl.dot(a, b, sums, input_precision="ieee", out_dtype=SUM)
        if gate is not None:
            g = tl.load(gate + rows_of_weight[None, :] + (start + k)[:, None], mask=mask, other=0.0).to(OPERAND)
            gate_sums = tl.dot(a, g, gate_sums, input_precision="ieee", out_dtype=SUM)
    acc = sums.to(tl.float32)
    gates = gate_sums.to(tl.float32)
    if weight_scales is not None:
        acc *= expert_scales(row_scales, weight_scales, row, expert, cols, width, live, ROW_STEP, BY_FEATURE)
        if gate is not None:
            gates *= expert_scales(row_scales, gate_scales, row, expert, cols, width, live, ROW_STEP, BY_FEATURE)
    if bias is not None:
        acc += tl.load(bias + expert * width + cols, mask=inside, other=0.0).to(tl.float32)[None, :]
    if gate is not None:
        activated = gates
    else:
        activated = acc
    if KIND == "relu":
        activated = tl.maximum(activated, 0.0)
    elif KIND != "none":
        activated = activated * gate_factor(activated, KIND)
    result = activated * acc if gate is not None else activated
    if scores is not None:
        result *= tl.load(scores + pair, mask=live, other=0.0).to(tl.float32)[:, None]
    if out_scale is not None:
        values = to_float8(divided(result, tl.load(out_scale), BY_HAND), LIMIT, out.dtype.element_ty, BY_HAND)
    else:
        values = result.to(out.dtype.element_ty)
    target = out + pair[:, None] * width + cols[None, :]
    tl.store(target, values, mask=live[:, None] & inside[None, :])
