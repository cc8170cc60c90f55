"""The Triton kernel of ``norm_quantise``."""

from __future__ import annotations

import triton
import triton.language as tl

from ..quantise_rows.triton_kernels import rotate, row_scales, to_eight_bit


@triton.jit(do_not_specialize=["rows", "L"])
def norm_quantise_kernel(
    x_ptr,  # [rows, C]
    residual_ptr,  # [rows, C] or None
    x_bias_ptr,  # [C] or None; only with a residual
    gate_ptr,  # a row of C for each image, or None; likewise
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    scale_ptr,  # a row of C for each image, or None
    shift_ptr,  # likewise
    sum_ptr,  # [rows, C], written; None where residual is None
    q_ptr,  # [rows, C], int8 or float8e4nv, written
    scales_ptr,  # [rows] float32, written
    rows,
    L,  # rows of an image
    C,
    gate_stride,  # from one image's row to the next; 0: all have one
    scale_stride,
    shift_stride,
    eps,
    LAYER: tl.constexpr,  # LayerNorm, else RMSNorm
    ROTATION: tl.constexpr,
    LIMIT: tl.constexpr,
    BLOCK_C: tl.constexpr,  # a power of two >= C, a multiple of 256 with a rotation
    ROWS: tl.constexpr,
):
    """ROWS rows a program, in registers throughout. Float32 arithmetic; a variance is taken from deviations, not from squares.

    Bytes moved: x and residual read, sum and q written, once each; an image's modulation stays in L2.
    """
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)[None, :]
    live = (r < rows)[:, None] & (c < C)
    offsets = r[:, None] * C + c
    image = (r // L)[:, None]
    # All loads come before the first reduction: behind its barrier they would wait for it.
    s = tl.load(x_ptr + offsets, mask=live, other=0.0)
    if scale_ptr is not None:
        scale = tl.load(scale_ptr + image * scale_stride + c, mask=live, other=0.0).to(tl.float32)
    if shift_ptr is not None:
        shift = tl.load(shift_ptr + image * shift_stride + c, mask=live, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        total = s.to(tl.float32)
        if x_bias_ptr is not None:
            total += tl.load(x_bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
        if gate_ptr is not None:
            total *= tl.load(gate_ptr + image * gate_stride + c, mask=live, other=0.0).to(tl.float32)
        total += tl.load(residual_ptr + offsets, mask=live, other=0.0).to(tl.float32)
        s = total.to(x_ptr.dtype.element_ty)
        tl.store(sum_ptr + offsets, s, mask=live)
    v = s.to(tl.float32)
    if LAYER:
        v = tl.where(live, v - (tl.sum(v, 1) / C)[:, None], 0.0)
    v *= tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None]
    if weight_ptr is not None:
        v *= tl.load(weight_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        v += tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if scale_ptr is not None:
        v *= 1.0 + scale
    if shift_ptr is not None:
        v += shift
    v = rotate(v, ROWS, BLOCK_C, ROTATION)
    factor = row_scales(v, LIMIT)
    tl.store(scales_ptr + r, factor, mask=r < rows)
    tl.store(q_ptr + offsets, to_eight_bit(v * (1.0 / factor)[:, None], LIMIT, q_ptr.dtype.element_ty), mask=live)
