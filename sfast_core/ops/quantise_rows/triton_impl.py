"""Activation, rotation and quantising in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl

from ..triton_launch import capacity, launcher
from .reference import GATED, LIMITS
from .triton_kernels import quantise_by_maxima_kernel, quantise_rows_kernel, quantise_tensor_kernel, row_maxima_kernel

MAX_CHANNELS = 16384
_PROGRAM_ELEMENTS = 2048
_THREAD_ELEMENTS = 16  # of short rows; of long ones more, since a program has at most _MAX_WARPS
_MAX_WARPS = 16
_TENSOR_BLOCK = 4096
DTYPES = {torch.int8: tl.int8, torch.float8_e4m3fn: tl.float8e4nv}


class QuantiseTile(NamedTuple):
    """A program's part: so many rows of a block of channels, a power of two."""

    block: int
    rows: int
    warps: int


def quantise_tile(channels: int, rotation: int) -> QuantiseTile:
    """The tile for rows of so many channels."""
    block = max(triton.next_power_of_2(channels), 256 if rotation else 16)
    rows = max(1, _PROGRAM_ELEMENTS // block)
    warps = max(1, min(_MAX_WARPS, rows * block // (32 * _THREAD_ELEMENTS)))
    return QuantiseTile(block, rows, warps)


def act_and_gate(act: str) -> tuple[str, str]:
    """ACT and GATE of the kernel."""
    return {"swiglu": ("silu", "first"), "geglu": ("gelu", "second")}.get(act, (act, ""))


def launch(
    x: torch.Tensor, dtype: torch.dtype, act: str = "none", rotation: int = 0, tile: QuantiseTile | None = None
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.quantise_rows`."""
    width = x.shape[-1]
    channels = width // 2 if act in GATED else width
    source = _rows(x)
    q = torch.empty((*x.shape[:-1], channels), dtype=dtype, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    rows = scales.numel()
    if q.numel() > 0:
        tile = tile or quantise_tile(channels, rotation)
        kind, gate = act_and_gate(act)
        with torch.cuda.device_of(x):
            launcher(quantise_rows_kernel, (-(-rows // tile.rows),))(
                source,
                q,
                scales,
                rows,
                channels,
                source.stride(0),
                ACT=kind,
                GATE=gate,
                ROTATION=rotation,
                LIMIT=LIMITS[dtype],
                BLOCK=tile.block,
                ROWS=tile.rows,
                num_warps=tile.warps,
            )
    return q, scales


def quantise_tensor(x: torch.Tensor, scale: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x in ``dtype`` with the one given ``scale`` (float32, on x's device): ``x * (1 / scale)`` in x's dtype, then rounded."""
    source = x.contiguous()
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    if q.numel() > 0:
        with torch.cuda.device_of(x):
            launcher(quantise_tensor_kernel, (-(-q.numel() // _TENSOR_BLOCK),))(
                source, q, scale, q.numel(), LIMIT=LIMITS[dtype], BLOCK=_TENSOR_BLOCK, num_warps=8
            )
    return q


def quantise_dynamic(x: torch.Tensor, dtype: torch.dtype, maxima: torch.Tensor | None = None) -> tuple[torch.Tensor, torch.Tensor]:
    """x in ``dtype`` with one scale, from its largest absolute value: q and scale [1]. ``maxima``: of parts of x, where they are known."""
    source = x.contiguous()
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = torch.empty(1, dtype=torch.float32, device=x.device)
    if q.numel() == 0:
        return q, scale.fill_(1.0)
    with torch.cuda.device_of(x):
        if maxima is None:
            channels = x.shape[-1]
            maxima = torch.empty(q.numel() // channels, dtype=torch.float32, device=x.device)
            tile = quantise_tile(channels, 0)
            launcher(row_maxima_kernel, (-(-maxima.numel() // tile.rows),))(
                source, maxima, maxima.numel(), channels, BLOCK=tile.block, ROWS=tile.rows, num_warps=tile.warps
            )
        programs = min(capacity(x.device)[0] * 8, math.ceil(q.numel() / _TENSOR_BLOCK))
        launcher(quantise_by_maxima_kernel, (programs,))(
            source,
            q,
            maxima,
            scale,
            q.numel(),
            maxima.numel(),
            programs,
            LIMIT=LIMITS[dtype],
            ROWS=1024,
            BLOCK=_TENSOR_BLOCK,
            num_warps=8,
        )
    return q, scale


def _rows(x: torch.Tensor) -> Any:
    """x as [rows, width], without a copy where its rows are dense."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
