"""Residual, norm, modulation, rotation and quantising in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import torch

from ..quantise_rows.reference import LIMITS
from ..quantise_rows.triton_impl import QuantiseTile, quantise_tile
from ..triton_launch import launcher
from .triton_kernels import norm_quantise_kernel


def launch(
    x: torch.Tensor,
    dtype: torch.dtype,
    norm: str,
    eps: float,
    weight: torch.Tensor | None = None,
    bias: torch.Tensor | None = None,
    scale: torch.Tensor | None = None,
    shift: torch.Tensor | None = None,
    residual: torch.Tensor | None = None,
    gate: torch.Tensor | None = None,
    x_bias: torch.Tensor | None = None,
    rotation: int = 0,
    tile: QuantiseTile | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """As :func:`.reference.norm_quantise`."""
    rows_in = x.contiguous()
    total = x if residual is None else torch.empty_like(rows_in)
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    if x.numel() > 0:
        images, length, channels = x.shape
        tile = tile or quantise_tile(channels, rotation)
        modulation = [None if row is None else row if row.stride(-1) == 1 else row.contiguous() for row in (gate, scale, shift)]
        vectors = [None if vector is None else vector.contiguous() for vector in (weight, bias)]
        with torch.cuda.device_of(x):
            launcher(norm_quantise_kernel, (-(-images * length // tile.rows),))(
                rows_in,
                None if residual is None else residual.contiguous(),
                None if x_bias is None else x_bias.contiguous(),
                modulation[0],
                *vectors,
                *modulation[1:],
                None if residual is None else total,
                q,
                scales,
                images * length,
                length,
                channels,
                *(0 if row is None or row.shape[0] == 1 else row.stride(0) for row in modulation),
                eps,
                LAYER=norm == "layer",
                ROTATION=rotation,
                LIMIT=LIMITS[dtype],
                BLOCK_C=tile.block,
                ROWS=tile.rows,
                num_warps=tile.warps,
            )
    return total, q, scales
