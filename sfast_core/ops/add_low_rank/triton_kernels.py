"""The Triton kernel that adds LoRAs to a weight."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def add_low_rank_kernel(
    weight,  # [rows, columns], contiguous
    up,  # [rows, RANKS], contiguous
    down,  # [RANKS, columns], contiguous
    factors,  # [RANKS] float32, the same for each GROUP
    out,  # as weight, written
    rows,
    columns,
    RANKS: tl.constexpr,
    GROUP: tl.constexpr,
    OPERAND: tl.constexpr,  # in which both are multiplied
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    """A tile a program. Sums are float32; what is added, and the sum with the weight, is rounded to weight's dtype."""
    blocks_n = tl.cdiv(columns, BLOCK_N)
    r = tl.program_id(0) // blocks_n * BLOCK_M + tl.arange(0, BLOCK_M)
    c = tl.program_id(0) % blocks_n * BLOCK_N + tl.arange(0, BLOCK_N)
    k = tl.arange(0, GROUP)
    left = up + r.to(tl.int64)[:, None] * RANKS + k[None, :]
    right = down + k.to(tl.int64)[:, None] * columns + c[None, :]
    added = tl.zeros((BLOCK_M, BLOCK_N), tl.float32)
    for first in range(0, RANKS, GROUP):
        a = tl.load(left + first, mask=(r < rows)[:, None], other=0.0).to(OPERAND)
        b = tl.load(right, mask=(c < columns)[None, :], other=0.0).to(OPERAND)
        added += tl.load(factors + first) * tl.dot(a, b, input_precision="ieee")
        right += GROUP * columns
    live = (r < rows)[:, None] & (c < columns)[None, :]
    place = r.to(tl.int64)[:, None] * columns + c[None, :]
    value = tl.load(weight + place, mask=live, other=0.0)
    total = value.to(tl.float32) + added.to(value.dtype).to(tl.float32)
    tl.store(out + place, total.to(value.dtype), mask=live)
