"""Gated residual, LayerNorm and modulation in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..packs import contiguous
from ..row_constraints import why_not_modulation, why_not_sum, why_not_vectors, why_without
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import image_and_part, last_part, modulation_rows, modulation_strides, row_tile, why_too_long

_FEW_CHANNELS = 4096  # with twice as many in a row, and a residual, registers don't hold 32 elements a thread


@triton.jit(do_not_specialize=["rows", "L", "part", "last"])
def ada_layer_norm_kernel(
    x_ptr,  # [rows, C]
    residual_ptr,  # [rows, C] or None
    x_bias_ptr,  # [C] or None; only with a residual
    weight_ptr,  # [C] or None
    bias_ptr,  # likewise
    gate_ptr,  # [B or 1, P or 1, C], or None; only with a residual
    scale_ptr,  # [B or 1, P or 1, C]
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
    BLOCK_C: tl.constexpr,  # a power of two >= C
    ROWS: tl.constexpr,
):  # fmt: skip
    """ROWS rows a program. Float32 arithmetic; the variance is taken from deviations, not from squares.

    Bytes moved: x, residual, sum and out once each, and a token's own modulation; one of many tokens stays in L2.
    """
    first_row = tl.program_id(0).to(tl.int64) * ROWS
    r = first_row + tl.arange(0, ROWS)
    c = tl.arange(0, BLOCK_C)[None, :]
    live = (r < rows)[:, None] & (c < C)
    offsets = r[:, None] * C + c
    image, of = image_and_part(r[:, None], L, part, last)
    # All loads come before the first reduction: behind its barrier they would wait for it.
    s = tl.load(x_ptr + offsets, mask=live, other=0.0)
    scale = tl.load(scale_ptr + image * scale_image + of * scale_part + c, mask=live, other=0.0).to(tl.float32)
    shift = tl.load(shift_ptr + image * shift_image + of * shift_part + c, mask=live, other=0.0).to(tl.float32)
    if weight_ptr is not None:
        weights = tl.load(weight_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if bias_ptr is not None:
        biases = tl.load(bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
    if residual_ptr is not None:
        total = s.to(tl.float32)
        if x_bias_ptr is not None:
            total += tl.load(x_bias_ptr + c, mask=c < C, other=0.0).to(tl.float32)
        if gate_ptr is not None:
            total *= tl.load(gate_ptr + image * gate_image + of * gate_part + c, mask=live, other=0.0).to(tl.float32)
        total += tl.load(residual_ptr + offsets, mask=live, other=0.0).to(tl.float32)
        s = total.to(x_ptr.dtype.element_ty)
        tl.store(sum_ptr + offsets, s, mask=live)
    v = s.to(tl.float32)
    mean = tl.sum(v, 1) / C
    v = tl.where(live, v - mean[:, None], 0.0)
    rstd = tl.rsqrt(tl.sum(v * v, 1) / C + eps)
    v *= rstd[:, None]
    if weight_ptr is not None:
        v *= weights
    if bias_ptr is not None:
        v += biases
    tl.store(out_ptr + offsets, (v * (1.0 + scale) + shift).to(out_ptr.dtype.element_ty), mask=live)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    return (
        why_too_long(call.x.shape[-1])
        or why_not_sum(call.x, call.residual, x_bias=call.x_bias)
        or why_without(call.residual, {"gate": call.gate})
        or why_not_vectors(call.x, weight=call.weight, bias=call.bias)
        or why_not_modulation(call.x, call.part, scale=call.scale, shift=call.shift, gate=call.gate)
    )


def launch(
    x, scale, shift, eps, residual=None, gate=None, x_bias=None, part=1, weight=None, bias=None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.ada_layer_norm`."""
    rows_in = x.contiguous()
    out = torch.empty_like(rows_in)
    total = x if residual is None else torch.empty_like(rows_in)
    if x.numel() > 0:
        images, length, channels = x.shape
        tile = row_tile(channels, few_tensors=residual is None or channels <= _FEW_CHANNELS)
        modulation = modulation_rows(gate, scale, shift)
        launcher(ada_layer_norm_kernel, (-(-images * length // tile.rows),))(
            rows_in,
            *contiguous(residual, x_bias, weight, bias),
            *modulation,
            None if residual is None else total,
            out,
            images * length,
            length,
            channels,
            part,
            last_part(modulation),
            *modulation_strides(modulation),
            eps,
            BLOCK_C=tile.block,
            ROWS=tile.rows,
            num_warps=tile.warps,
        )
    return total, out
