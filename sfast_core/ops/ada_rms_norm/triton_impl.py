"""Gated residual, RMSNorm and modulation in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import modulation_rows, row_tile, why_too_long
from .triton_kernels import ada_rms_norm_kernel


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if call.x.dim() == 0:
        return "x has no dimension"
    if reason := why_too_long(call.x.shape[-1]):
        return reason
    if call.residual is None and (call.gate is not None or call.x_weight is not None):
        return "gate or x_weight without a residual"
    if call.residual is not None and (call.residual.shape != call.x.shape or call.residual.dtype != call.x.dtype):
        return (
            f"residual is {list(call.residual.shape)} {call.residual.dtype}, x is {list(call.x.shape)} {call.x.dtype}"
        )
    if call.offset and call.weight is None:
        return "an offset without a weight"
    for name, vector, dtypes in (
        ("weight", call.weight, (call.x.dtype, torch.float32)),
        ("x_weight", call.x_weight, (call.x.dtype,)),
    ):
        if vector is not None and (vector.shape != call.x.shape[-1:] or vector.dtype not in dtypes):
            return f"{name} is {list(vector.shape)} {vector.dtype}, must be {list(call.x.shape[-1:])} {call.x.dtype}"
    for name, row in (("scale", call.scale), ("shift", call.shift), ("gate", call.gate)):
        if row is None:
            continue
        if call.x.dim() != 3:
            return f"{name} with x of {call.x.dim()} dimensions, must have 3"
        if (
            row.dim() != 3
            or any(size not in (1, full) for size, full in zip(row.shape[:2], call.x.shape[:2], strict=True))
            or row.shape[2] != call.x.shape[2]
        ):
            return f"{name} is {list(row.shape)}, must be {list(call.x.shape)} or have one row for each image"
        if row.dtype != call.x.dtype:
            return f"{name} is {row.dtype}, x is {call.x.dtype}"
    return None


def launch(
    x, eps, weight=None, scale=None, shift=None, residual=None, gate=None, x_weight=None, offset=0.0
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.ada_rms_norm`."""
    rows_in = x.contiguous()
    out = torch.empty_like(rows_in)
    total = x if residual is None else torch.empty_like(rows_in)
    if x.numel() > 0:
        channels = x.shape[-1]
        rows = x.numel() // channels
        tile = row_tile(channels)
        modulation = modulation_rows(gate, scale, shift)
        strides = [0 if row is None or row.shape[dim] == 1 else row.stride(dim) for row in modulation for dim in (0, 1)]
        with torch.cuda.device_of(x):
            launcher(ada_rms_norm_kernel, (-(-rows // tile.rows),))(
                rows_in,
                None if residual is None else residual.contiguous(),
                None if x_weight is None else x_weight.contiguous(),
                modulation[0],
                None if weight is None else weight.contiguous(),
                *modulation[1:],
                None if residual is None else total,
                out,
                rows,
                x.shape[1] if x.dim() == 3 else rows,
                channels,
                *strides,
                eps,
                offset,
                BLOCK_C=tile.block,
                ROWS=tile.rows,
                num_warps=tile.warps,
            )
    return total, out
