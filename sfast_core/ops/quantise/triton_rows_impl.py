"""Rows to int8, rotated or not, in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import torch
import triton

from ..constraints import why_no_triton, why_not_dtypes
from ..triton_launch import launcher
from ..triton_operand import dtype_of
from .triton_kernels import quantise_rows_kernel

if TYPE_CHECKING:
    from ...target import Target

MAX_CHANNELS = 32768
GROUPS = (0, 16, 64, 256)
_PROGRAM_ELEMENTS = 2048
_THREAD_ELEMENTS = 16  # of short rows; of long ones more, since a program has at most _MAX_WARPS
_MAX_WARPS = 16


class QuantiseTile(NamedTuple):
    """A program's part: so many rows of a block of channels, a power of two."""

    block: int
    rows: int
    warps: int


def quantise_tile(channels: int, rotate: int) -> QuantiseTile:
    """The tile for rows of so many channels."""
    block = max(triton.next_power_of_2(channels), rotate, 16)
    rows = max(1, _PROGRAM_ELEMENTS // block)
    return QuantiseTile(block, rows, max(1, min(_MAX_WARPS, rows * block // (32 * _THREAD_ELEMENTS))))


def why_not(target: Target, x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, rotate: int = 0) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x):
        return reason
    if dtype != torch.int8 or scale is not None:
        return "is for int8 by row"
    if x.dim() == 0 or x.numel() == 0:
        return f"x is {list(x.shape)}"
    if x.shape[-1] > MAX_CHANNELS:
        return f"rows of {x.shape[-1]} channels are longer than {MAX_CHANNELS}"
    if rotate not in GROUPS:
        return f"rotate is {rotate}, must be one of {GROUPS}"
    return f"rotate is {rotate}, which doesn't divide {x.shape[-1]} features" if rotate and x.shape[-1] % rotate else None


def launch(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, rotate: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.quantise`, bit for bit but for the order in which a rotation sums."""
    return launch_tile(quantise_tile(x.shape[-1], rotate), x, rotate)


def launch_tile(tile: QuantiseTile, x: torch.Tensor, rotate: int) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`launch`, with this tile."""
    source, channels = _rows(x), x.shape[-1]
    q = torch.empty(x.shape, dtype=torch.int8, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    rows = scales.numel()
    with torch.cuda.device_of(x):
        launcher(quantise_rows_kernel, (-(-rows // tile.rows),))(
            source,
            q,
            scales,
            rows,
            channels,
            source.stride(0),
            GROUP=rotate,
            NARROW=dtype_of(x),
            BLOCK=tile.block,
            ROWS=tile.rows,
            num_warps=tile.warps,
        )
    return q, scales


def _rows(x: torch.Tensor) -> Any:
    """x as [rows, width], without a copy where its rows are dense."""
    rows = x.reshape(-1, x.shape[-1])
    return rows if rows.stride(-1) == 1 else rows.contiguous()
