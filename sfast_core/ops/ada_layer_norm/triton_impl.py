"""Gated residual, LayerNorm and modulation in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import modulation_rows, row_tile, why_too_long


@triton.jit(do_not_specialize=["rows", "L"])
def ada_layer_norm_kernel(
    x_ptr,  # [rows, C]
    residual_ptr,  # [rows, C] or None
    x_bias_ptr,  # [C] or None; only with a residual
    gate_ptr,  # a row of C for each image, or None; likewise
    scale_ptr,  # a row of C for each image
    shift_ptr,  # likewise
    sum_ptr,  # [rows, C], written; None where residual is None
    out_ptr,  # [rows, C], written
    rows,
    L,  # rows of an image
    C,
    gate_stride,  # from one image's row to the next; 0: all have one
    scale_stride,
    shift_stride,
    eps,
    BLOCK_C: tl.constexpr,  # a power of two >= C
    ROWS: tl.constexpr,
):
    """ROWS rows a program. Float32 arithmetic; the variance is taken from deviations, not from squares.

    Bytes moved: x, residual, sum and out once each; an image's modulation stays in L2.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    r = first_row + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)[None, :]
    live = (r < rows)[:, None] & (c < C)
    offsets = r[:, None] * C + c
    image = (r // L)[:, None]
    # All loads come before the first reduction: behind its barrier they would wait for it.
    s = tl.load(x_ptr + offsets, mask=live, other=0.0)
    scale = tl.load(scale_ptr + image * scale_stride + c, mask=live, other=0.0).to(tl.float32)
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
    mean = tl.sum(v, 1) / C
    v = tl.where(live, v - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(v * v, 1) / C + eps)
    tl.store(out_ptr + offsets, (v * rstd[:, None] * (1.0 + scale) + shift).to(out_ptr.dtype.element_ty), mask=live)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_too_long(call.x.shape[-1]):
        return reason
    if call.residual is None and (call.gate is not None or call.x_bias is not None):
        return "gate or x_bias without a residual"
    if call.x_bias is not None and (call.x_bias.dtype != call.x.dtype or call.x_bias.shape != call.x.shape[-1:]):
        return (
            f"x_bias is {list(call.x_bias.shape)} {call.x_bias.dtype}, must be {list(call.x.shape[-1:])} {call.x.dtype}"
        )
    if call.residual is not None and (call.residual.shape != call.x.shape or call.residual.dtype != call.x.dtype):
        return (
            f"residual is {list(call.residual.shape)} {call.residual.dtype}, x is {list(call.x.shape)} {call.x.dtype}"
        )
    for name, row in (("scale", call.scale), ("shift", call.shift), ("gate", call.gate)):
        if row is None:
            continue
        if (
            row.dim() != 3
            or row.shape[0] not in (1, call.x.shape[0])
            or row.shape[1] != 1
            or row.shape[2] != call.x.shape[2]
            or row.dtype != call.x.dtype
        ):
            return (
                f"{name} is {list(row.shape)} {row.dtype}, must be {[call.x.shape[0], 1, call.x.shape[2]]}"
                f" {call.x.dtype}"
            )
    return None


def launch(x, scale, shift, eps, residual=None, gate=None, x_bias=None) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.ada_layer_norm`."""
    rows_in = x.contiguous()
    out = torch.empty_like(rows_in)
    total = x if residual is None else torch.empty_like(rows_in)
    if x.numel() > 0:
        images, length, channels = x.shape
        tile = row_tile(channels)
        modulation = modulation_rows(gate, scale, shift)
        with torch.cuda.device_of(x):
            launcher(ada_layer_norm_kernel, (-(-images * length // tile.rows),))(
                rows_in,
                None if residual is None else residual.contiguous(),
                None if x_bias is None else x_bias.contiguous(),
                *modulation,
                None if residual is None else total,
                out,
                images * length,
                length,
                channels,
                *(0 if row is None or row.shape[0] == 1 else row.stride(0) for row in modulation),
                eps,
                BLOCK_C=tile.block,
                ROWS=tile.rows,
                num_warps=tile.warps,
            )
    return total, out
