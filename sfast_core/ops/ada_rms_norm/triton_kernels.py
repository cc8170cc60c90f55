"""The Triton kernel of ``ada_rms_norm``."""

from __future__ import annotations

import triton
import triton.language as tl

from ..triton_rows import image_and_part


@triton.jit(do_not_specialize=["rows", "L", "part", "last"])
def ada_rms_norm_kernel(
    x_ptr,  # [rows, C]
    residual_ptr,  # [rows, C] or None
    x_weight_ptr,  # [C] or None; only with a residual
    gate_ptr,  # [B or 1, P or 1, C], or None; likewise
    weight_ptr,  # [C] or None
    scale_ptr,  # [B or 1, P or 1, C], or None
    shift_ptr,  # likewise
    sum_ptr,  # [rows, C], written; None where residual is None
    out_ptr,  # [rows, C], written
    rows,
    L,  # rows of an image
    C,
    part,  # rows that have one of several of a modulation; the last has all that are left
    last,  # P - 1
    gate_image, gate_part, scale_image, scale_part, shift_image, shift_part,  # strides; 0: all have one
    eps,
    offset,
    BLOCK_C: tl.constexpr,  # a power of two >= C
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program. Float32 arithmetic.

    Bytes moved: x, residual, sum and out once each, and a token's own modulation; one of many tokens stays in L2.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    r = first_row + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)[None, :]
    live = (r < rows)[:, None] & (c < C)
    offsets = r[:, None] * C + c
    image, of = image_and_part(r[:, None], L, part, last)
    # All loads come before the first reduction, behind whose barrier they would wait for it, and keep the width that
    # they have in memory.
    s = tl.load(x_ptr + offsets, mask=live, other=0.0)
    if weight_ptr is not None:
        weights = tl.load(weight_ptr + c, mask=c < C, other=0.0)
    if scale_ptr is not None:
        scales = tl.load(scale_ptr + image * scale_image + of * scale_part + c, mask=live, other=0.0)
    if shift_ptr is not None:
        shifts = tl.load(shift_ptr + image * shift_image + of * shift_part + c, mask=live, other=0.0)
    if residual_ptr is not None:
        kept = tl.load(residual_ptr + offsets, mask=live, other=0.0)
        if gate_ptr is not None:
            gates = tl.load(gate_ptr + image * gate_image + of * gate_part + c, mask=live, other=0.0)
        v = s.to(tl.float32)
        if x_weight_ptr is not None:
            x_weights = tl.load(x_weight_ptr + c, mask=c < C, other=0.0).to(tl.float32)
            v *= tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None] * x_weights
        if gate_ptr is not None:
            v *= gates.to(tl.float32)
        s = (v + kept.to(tl.float32)).to(x_ptr.dtype.element_ty)
        tl.store(sum_ptr + offsets, s, mask=live)
    v = s.to(tl.float32)
    v *= tl.rsqrt(tl.sum(v * v, 1) / C + eps)[:, None]
    if weight_ptr is not None:
        v *= weights.to(tl.float32) + offset
    if scale_ptr is not None:
        v *= 1.0 + scales.to(tl.float32)
    if shift_ptr is not None:
        v += shifts.to(tl.float32)
    tl.store(out_ptr + offsets, v.to(out_ptr.dtype.element_ty), mask=live)
