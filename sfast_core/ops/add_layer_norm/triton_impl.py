"""Residual addition and LayerNorm in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..packs import contiguous
from ..row_constraints import why_not_sum
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import row_tile, why_too_long


@triton.jit(do_not_specialize=["rows"])
def add_layer_norm_kernel(
    x_ptr,  # [rows, C]
    residual_ptr,  # [rows, C] or None
    x_bias_ptr,  # [C] or None, only with a residual
    sum_bias_ptr,  # likewise
    weight_ptr,  # [C] or None
    bias_ptr,  # [C] or None
    sum_ptr,  # [rows, C], written; None where residual is None
    out_ptr,  # [rows, C], written
    rows,
    C,
    eps,
    BLOCK_C: tl.constexpr,  # a power of two >= C
    ROWS: tl.constexpr,
):
    """ROWS rows a program. Float32 arithmetic; the variance is taken from deviations, not from squares.

    Bytes moved: x, residual, sum and out once each.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    r = tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)
    offsets = r[:, None] * C + c[None, :]
    live = (first_row + r < rows)[:, None] & (c < C)[None, :]
    base = first_row * C
    # All loads come before the first reduction: behind its barrier they would wait for it.
    s = tl.load(x_ptr + base + offsets, mask=live, other=0.0)
    if weight_ptr is not None:
        weight = tl.load(weight_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        bias = tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        total = s.to(tl.float32) + tl.load(residual_ptr + base + offsets, mask=live, other=0.0).to(tl.float32)
        if x_bias_ptr is not None:
            total += tl.load(x_bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
        s = total.to(x_ptr.dtype.element_ty)
        if sum_bias_ptr is not None:
            total += tl.load(sum_bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)[None, :]
        tl.store(sum_ptr + base + offsets, total.to(x_ptr.dtype.element_ty), mask=live)
    v = s.to(tl.float32)
    mean = tl.sum(v, 1) / C
    v = tl.where(live, v - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(v * v, 1) / C + eps)
    v *= rstd[:, None]
    if weight_ptr is not None:
        v *= weight[None, :]
    if bias_ptr is not None:
        v += bias[None, :]
    tl.store(out_ptr + base + offsets, v.to(out_ptr.dtype.element_ty), mask=live)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    return why_not_sum(call.x, call.residual, x_bias=call.x_bias, sum_bias=call.sum_bias) or why_too_long(
        call.x.shape[-1]
    )


def launch(x, residual, weight, bias, eps, x_bias=None, sum_bias=None) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.add_layer_norm`."""
    rows_in = x.contiguous()
    out = torch.empty_like(rows_in)
    total = x if residual is None else torch.empty_like(rows_in)
    if x.numel() > 0:
        channels = x.shape[-1]
        rows = x.numel() // channels
        tile = row_tile(channels)
        launcher(add_layer_norm_kernel, (-(-rows // tile.rows),))(
            rows_in,
            *contiguous(residual, x_bias, sum_bias, weight, bias),
            None if residual is None else total,
            out,
            rows,
            channels,
            eps,
            BLOCK_C=tile.block,
            ROWS=tile.rows,
            num_warps=tile.warps,
        )
    return total, out
