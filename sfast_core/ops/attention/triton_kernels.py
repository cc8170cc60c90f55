"""Triton kernel for attention with few keys: they stay with a program while it goes through the queries."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _rows(base, rows, stride, limit, col, depth):
    """Rows ``rows`` of ``limit``, columns ``col`` of ``depth`` contiguous ones, of a matrix; zeros beyond both."""
    return tl.load(
        base + rows[:, None] * stride + col[None, :], mask=(rows < limit)[:, None] & (col < depth)[None, :], other=0.0
    )


@triton.jit(
    do_not_specialize=[
        "queries",
        "keys",
        "heads",
        "depth",
        "chunk",
        "q_batch",
        "q_head",
        "q_row",
        "k_batch",
        "k_head",
        "k_row",
        "v_batch",
        "v_head",
        "v_row",
    ]
)
def cross_attention_kernel(
    q,  # [B, H, L, D], strides 8 * q_batch, 8 * q_head, 8 * q_row, 1
    k,  # [B, H, S, D], strides 8 * k_batch, 8 * k_head, 8 * k_row, 1
    v,  # [B, H, S, D], strides 8 * v_batch, 8 * v_head, 8 * v_row, 1
    out,  # [B, L, H, D], contiguous
    queries,  # L
    keys,  # S
    heads,  # H
    depth,  # D / 8
    chunk,  # queries per program, a multiple of BLOCK_L
    q_batch,
    q_head,
    q_row,
    k_batch,
    k_head,
    k_row,
    v_batch,
    v_head,
    v_row,
    scale,  # of the scores, times log2(e)
    BLOCK_L: tl.constexpr,
    S0: tl.constexpr,
    S1: tl.constexpr,
    D0: tl.constexpr,
    D1: tl.constexpr,
    OPERAND: tl.constexpr,
):
    """``softmax(q @ k.T * scale / log2 e) @ v`` of a head and ``chunk`` queries; keys S0 + S1 >= S, heads D0 + D1 >= D.

    A tile's sides are powers of two. 77 keys are 64 + 16 of them instead of 128, a head of 40 is 32 + 16 instead of 64,
    so that little of the work is padding. Scores, softmax and sums are float32; the weights are rounded to v's dtype
    before the second product, as every fused backend does. One pass: with all keys at hand there is no running maximum.
    Moves q and out once, k and v once a program.

    OPERAND is the dtype in which operands are multiplied: the tensors' own, except in Triton's interpreter, which can't
    multiply bfloat16.
    """
    # Counted in eights, so that Triton knows all offsets to be of whole 16-byte units, also for sizes such as 40.
    depth = depth * 8
    q_row, k_row, v_row = q_row * 8, k_row * 8, v_row * 8
    batch = (tl.program_id(1) // heads).to(tl.int64)
    head = (tl.program_id(1) % heads).to(tl.int64)
    q += (batch * q_batch + head * q_head) * 8
    k += (batch * k_batch + head * k_head) * 8
    v += (batch * v_batch + head * v_head) * 8
    out_row = heads * depth
    out += batch * queries * out_row + head * depth

    key0, col0 = tl.arange(0, S0), tl.arange(0, D0)
    k00 = _rows(k, key0, k_row, keys, col0, depth).to(OPERAND)
    v00 = _rows(v, key0, v_row, keys, col0, depth).to(OPERAND)
    if D1 > 0:
        col1 = D0 + tl.arange(0, D1)
        k01 = _rows(k, key0, k_row, keys, col1, depth).to(OPERAND)
        v01 = _rows(v, key0, v_row, keys, col1, depth).to(OPERAND)
    if S1 > 0:
        key1 = S0 + tl.arange(0, S1)
        k10 = _rows(k, key1, k_row, keys, col0, depth).to(OPERAND)
        v10 = _rows(v, key1, v_row, keys, col0, depth).to(OPERAND)
        if D1 > 0:
            k11 = _rows(k, key1, k_row, keys, col1, depth).to(OPERAND)
            v11 = _rows(v, key1, v_row, keys, col1, depth).to(OPERAND)

    first = tl.program_id(0) * chunk
    for start in range(first, min(first + chunk, queries), BLOCK_L):
        row = start + tl.arange(0, BLOCK_L).to(tl.int64)
        q0 = _rows(q, row, q_row, queries, col0, depth).to(OPERAND)
        s0 = tl.dot(q0, k00.T)
        if D1 > 0:
            q1 = _rows(q, row, q_row, queries, col1, depth).to(OPERAND)
            s0 = tl.dot(q1, k01.T, s0)
        s0 = tl.where((key0 < keys)[None, :], s0 * scale, -float("inf"))
        top = tl.max(s0, 1)
        if S1 > 0:
            s1 = tl.dot(q0, k10.T)
            if D1 > 0:
                s1 = tl.dot(q1, k11.T, s1)
            s1 = tl.where((key1 < keys)[None, :], s1 * scale, -float("inf"))
            top = tl.maximum(top, tl.max(s1, 1))
        p0 = tl.exp2(s0 - top[:, None])
        total = tl.sum(p0, 1)
        w0 = p0.to(OPERAND)
        o0 = tl.dot(w0, v00)
        if D1 > 0:
            o1 = tl.dot(w0, v01)
        if S1 > 0:
            p1 = tl.exp2(s1 - top[:, None])
            total += tl.sum(p1, 1)
            w1 = p1.to(OPERAND)
            o0 = tl.dot(w1, v10, o0)
            if D1 > 0:
                o1 = tl.dot(w1, v11, o1)
        target = out + row[:, None] * out_row
        inside = (row < queries)[:, None]
        tl.store(
            target + col0[None, :],
            (o0 / total[:, None]).to(out.dtype.element_ty),
            mask=inside & (col0 < depth)[None, :],
        )
        if D1 > 0:
            tl.store(
                target + col1[None, :],
                (o1 / total[:, None]).to(out.dtype.element_ty),
                mask=inside & (col1 < depth)[None, :],
            )
