"""Gated residual, RMSNorm and modulation in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch

from ...target import Target
from ..packs import contiguous
from ..row_constraints import why_not_modulation, why_not_sum, why_not_vectors, why_without
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import last_part, modulation_rows, modulation_strides, row_tile, why_too_long
from .triton_kernels import ada_rms_norm_kernel


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_sum(call.x, call.residual, x_weight=call.x_weight) or why_too_long(call.x.shape[-1]):
        return reason
    if call.offset and call.weight is None:
        return "an offset without a weight"
    return (
        why_without(call.residual, {"gate": call.gate})
        or why_not_vectors(call.x, torch.float32, weight=call.weight)
        or why_not_modulation(call.x, call.part, scale=call.scale, shift=call.shift, gate=call.gate)
    )


def launch(
    x, eps, weight=None, scale=None, shift=None, residual=None, gate=None, x_weight=None, offset=0.0, part=1
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.ada_rms_norm`."""
    rows_in = x.contiguous()
    out = torch.empty_like(rows_in)
    total = x if residual is None else torch.empty_like(rows_in)
    if x.numel() > 0:
        channels = x.shape[-1]
        rows = x.numel() // channels
        tile = row_tile(channels, few_tensors=x_weight is None)
        modulation = modulation_rows(gate, scale, shift)
        strides = modulation_strides(modulation)
        launcher(ada_rms_norm_kernel, (-(-rows // tile.rows),))(
            rows_in,
            *contiguous(residual, x_weight),
            modulation[0],
            *contiguous(weight),
            *modulation[1:],
            None if residual is None else total,
            out,
            rows,
            x.shape[1] if x.dim() == 3 else rows,
            channels,
            part,
            last_part(modulation),
            *strides,
            eps,
            offset,
            BLOCK_C=tile.block,
            ROWS=tile.rows,
            num_warps=tile.warps,
        )
    return total, out
