"""Residual, norm, modulation, rotation and quantising in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..constraints import why_no_triton, why_not_dtypes
from ..quantise import triton_rows_impl, triton_tensor_impl
from ..triton_launch import launcher
from ..triton_operand import dtype_of
from ..triton_rows import row_tile, why_too_long
from .triton_kernels import norm_quantise_kernel

if TYPE_CHECKING:
    from ...target import Target

_SMALLEST_BLOCK = 16


def why_not(
    target: Target,
    x: torch.Tensor,
    norm: str,
    eps: float,
    dtype: torch.dtype,
    input_scale: torch.Tensor | None = None,
    rotate: int = 0,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    x_weight: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x):
        return reason
    quantised = triton_rows_impl if input_scale is None else triton_tensor_impl
    if reason := quantised.why_not(target, x, dtype, input_scale, rotate) or why_too_long(x.shape[-1]):
        return reason
    if norm not in ("layer", "rms"):
        return f'norm is "{norm}", must be "layer" or "rms"'
    for name, given in (("x_weight", x_weight),) if norm == "layer" else (("bias", bias), ("x_bias", x_bias)):
        if given is not None:
            return f'{name} with norm "{norm}"'
    for name, given in (("gate", gate), ("x_bias", x_bias), ("x_weight", x_weight)):
        if given is not None and residual is None:
            return f"{name} without a residual"
    if residual is not None and (residual.shape != x.shape or residual.dtype != x.dtype):
        return f"residual is {list(residual.shape)} {residual.dtype}, x is {list(x.shape)} {x.dtype}"
    for name, vector in (("weight", weight), ("bias", bias), ("x_bias", x_bias), ("x_weight", x_weight)):
        if vector is not None and (vector.shape != x.shape[-1:] or vector.dtype != x.dtype):
            return f"{name} is {list(vector.shape)} {vector.dtype}, must be {list(x.shape[-1:])} {x.dtype}"
    for name, row in (("scale", scale), ("shift", shift), ("gate", gate)):
        if row is None:
            continue
        if x.dim() != 3:
            return f"{name} with x of {x.dim()} dimensions, must have 3"
        if row.dim() != 3 or row.shape[0] not in (1, x.shape[0]) or row.shape[1] != 1 or row.shape[2] != x.shape[2] or row.dtype != x.dtype:
            return f"{name} is {list(row.shape)} {row.dtype}, must be {[x.shape[0], 1, x.shape[2]]} {x.dtype}"
    return None


def launch(
    x: torch.Tensor,
    norm: str,
    eps: float,
    dtype: torch.dtype,
    input_scale: torch.Tensor | None = None,
    rotate: int = 0,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    x_weight: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`.reference.norm_quantise`."""
    rows_in, channels = x.contiguous(), x.shape[-1]
    rows = x.numel() // channels
    total = x if residual is None else torch.empty_like(rows_in)
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    if input_scale is None:
        factors = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    else:
        factors = torch.empty_like(input_scale)
    tile = row_tile(max(channels, rotate, _SMALLEST_BLOCK))
    vectors = [None if vector is None else vector.contiguous() for vector in (x_weight, x_bias, weight, bias)]
    modulation = [None if row is None else row if row.stride(-1) == 1 else row.contiguous() for row in (gate, scale, shift)]
    with torch.cuda.device_of(x):
        launcher(norm_quantise_kernel, (-(-rows // tile.rows),))(
            rows_in,
            None if residual is None else residual.contiguous(),
            *vectors[:2],
            modulation[0],
            *vectors[2:],
            *modulation[1:],
            None if residual is None else total,
            q,
            input_scale,
            factors,
            rows,
            x.shape[1] if x.dim() == 3 else rows,
            channels,
            *(0 if row is None or row.shape[0] == 1 else row.stride(0) for row in modulation),
            eps,
            RMS=norm == "rms",
            NARROW=dtype_of(x),
            GROUP=rotate,
            LIMIT=0.0 if input_scale is None else torch.finfo(dtype).max,
            BY_HAND=x.device.type != "cuda",
            BLOCK=tile.block,
            ROWS=tile.rows,
            num_warps=tile.warps,
        )
    return total, q, factors
