"""Rows to int8, rotated or not, or to float8, in one Triton kernel: each row is read once and stays in registers."""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import FLOAT8, why_not_source, width
from .triton_kernels import quantise_rows_kernel
from .triton_source import source_constants, source_of

MAX_CHANNELS = 32768
GROUPS = (0, 16, 64, 256)
_PROGRAM_ELEMENTS = 2048
_THREAD_ELEMENTS = 32  # of long rows more, since a program has at most _MAX_WARPS
_BUSY_ELEMENTS = 16  # likewise, where they are rotated or an activation is computed of each
_MAX_WARPS = 16
_MOST_IDLE = 0.3  # of a block's places: with more of them a second, smaller block behind it is faster


class QuantiseTile(NamedTuple):
    """A program's part: so many rows of a block of channels, and of a smaller block behind it, or of none."""

    block: int
    rows: int
    warps: int
    tail: int = 0


def quantise_tile(channels: int, rotate: int, made: bool) -> QuantiseTile:
    """The tile for rows of so many channels.

    ``made``: an activation costs each place of a block more than loading does, so few are to be idle
    (docs/notes/0033-what-quantising-costs.md).
    """
    least = max(rotate, 16)
    head = triton.next_power_of_2(channels + 1) // 2
    tail = max(triton.next_power_of_2(channels - head), least)
    block = max(triton.next_power_of_2(channels), least)
    worth = head >= _PROGRAM_ELEMENTS if made else not rotate and channels < (1 - _MOST_IDLE) * block
    if worth and least <= head < channels and head + tail < block:
        block = head
    else:
        tail = 0
    rows = max(1, _PROGRAM_ELEMENTS // block)
    threads = rows * (block + tail) // (_BUSY_ELEMENTS if made or rotate else _THREAD_ELEMENTS)
    return QuantiseTile(block, rows, min(_MAX_WARPS, triton.next_power_of_2(max(1, threads // 32) + 1) // 2), tail)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_source(call.x, call.act, call.times, call.front):
        return reason
    if call.scale is not None:
        return "is for rows with scales of their own"
    if call.dtype != torch.int8 and (call.dtype not in FLOAT8 or target.capability < (8, 9)):
        return f"is for int8, and for float8 from compute capability 8.9 on, dtype is {call.dtype}"
    if call.rotate and (call.by_range or call.dtype != torch.int8):
        return "rotates for int8 by its largest number alone"
    channels = width(call.x, call.front)
    if channels > MAX_CHANNELS:
        return f"rows of {channels} channels are longer than {MAX_CHANNELS}"
    if call.rotate not in GROUPS:
        return f"rotate is {call.rotate}, must be one of {GROUPS}"
    if call.rotate and channels % call.rotate:
        return f"rotate is {call.rotate}, which doesn't divide {channels} features"
    return None


def launch(
    x, dtype, scale=None, rotate=0, act=None, times=None, front=None, by_range=False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.quantise`, bit for bit but for the order in which a rotation sums."""
    return launch_tile(
        quantise_tile(width(x, front), rotate, act is not None), x, rotate, act, times, front, dtype, by_range
    )


def launch_tile(
    tile: QuantiseTile,
    x: torch.Tensor,
    rotate: int,
    act: str | None = None,
    times: torch.Tensor | None = None,
    front: torch.Tensor | None = None,
    dtype: torch.dtype = torch.int8,
    by_range: bool = False,
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`launch`, with this tile."""
    source, channels = source_of(x, times, front), width(x, front)
    q = torch.empty((*x.shape[:-1], channels), dtype=dtype, device=x.device)
    scales = torch.empty((*x.shape[:-1], 1), dtype=torch.float32, device=x.device)
    rows = scales.numel()
    launcher(quantise_rows_kernel, (-(-rows // tile.rows),))(
        *source.pointers,
        q,
        scales,
        rows,
        channels,
        *source.places,
        **source_constants(source, x, act, times, front),
        GROUP=rotate,
        BY_RANGE=by_range,
        LIMIT=torch.finfo(dtype).max if dtype.is_floating_point else 0.0,
        BLOCK=tile.block,
        TAIL=tile.tail,
        ROWS=tile.rows,
        num_warps=tile.warps,
    )
    return q, scales
