"""Triton kernels of a mixture of experts: which rows each expert gets, and products of these rows."""

from __future__ import annotations

import triton
import triton.language as tl

from ..linear.triton_kernels import gate_factor


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


@triton.jit(do_not_specialize=["pairs", "group_rows", "blocks_m"])
def expert_linear_kernel(
    x,  # [pairs // REPEAT, DEPTH], contiguous
    weight,  # [EXPERTS * width, DEPTH], contiguous
    gate,  # as weight, read only if GATED
    bias,  # [EXPERTS * width], read only if HAS_BIAS
    scores,  # [pairs], read only if SCALED
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
    GATED: tl.constexpr,
    HAS_BIAS: tl.constexpr,
    SCALED: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """``out[p] = act(x[p // REPEAT] @ weight[e].T + bias[e])``, e being the expert of pair p; GATED: ``act(x @
    gate[e].T) * (x @ weight[e].T)``; SCALED: times scores[p].

    A program computes a tile of one expert's pairs: which expert's, it counts out of ``counts``, so that the grid is as
    large for any choice, and what is beyond the last block returns. Tiles go down ``group_rows`` blocks of rows before
    the next column, so that neighbours share rows and weights in L2. Sums and what follows are float32, rounded once.
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
    rows = x + (pair // REPEAT) * depth
    acc = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    gates = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for start in range(0, depth, BLOCK_K):
        deep = start + k < depth
        a = tl.load(rows[:, None] + (start + k)[None, :], mask=live[:, None] & deep[None, :], other=0.0).to(OPERAND)
        mask = inside[None, :] & deep[:, None]
        b = tl.load(weight + rows_of_weight[None, :] + (start + k)[:, None], mask=mask, other=0.0).to(OPERAND)
        acc = tl.dot(a, b, acc, input_precision="ieee")
        if GATED:
            g = tl.load(gate + rows_of_weight[None, :] + (start + k)[:, None], mask=mask, other=0.0).to(OPERAND)
            gates = tl.dot(a, g, gates, input_precision="ieee")
    if HAS_BIAS:
        acc += tl.load(bias + expert * width + cols, mask=inside, other=0.0).to(tl.float32)[None, :]
    if GATED:
        activated = gates
    else:
        activated = acc
    if KIND == "relu":
        activated = tl.maximum(activated, 0.0)
    elif KIND != "none":
        activated = activated * gate_factor(activated, KIND)
    result = activated * acc if GATED else activated
    if SCALED:
        result *= tl.load(scores + pair, mask=live, other=0.0).to(tl.float32)[:, None]
    target = out + pair[:, None] * width + cols[None, :]
    tl.store(target, result.to(out.dtype.element_ty), mask=live[:, None] & inside[None, :])
