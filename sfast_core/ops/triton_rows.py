"""What Triton kernels share that read each row of channels once and keep it in registers: how many rows a program has,
and rows beside them.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import torch
import triton
import triton.language as tl

MAX_CHANNELS = 8192
_PROGRAM_ELEMENTS = 2048  # of one row or of several short ones
_THREAD_ELEMENTS = 16  # twice as many where few tensors are held in registers at a time (docs/notes/0049)


class RowTile(NamedTuple):
    """A program's part."""

    block: int  #: a power of two, at least the channels of a row
    rows: int
    warps: int


def row_tile(channels: int, few_tensors: bool = False) -> RowTile:
    """The tile for rows of so many channels. ``few_tensors``: registers hold twice as many elements a thread."""
    block = triton.next_power_of_2(channels)
    rows = max(1, _PROGRAM_ELEMENTS // block)
    return RowTile(block, rows, rows * block // (32 * _THREAD_ELEMENTS * (1 + few_tensors)))


def why_too_long(channels: int) -> str | None:
    """The reason why a row of so many channels has no tile, or None."""
    return f"rows of {channels} channels are longer than {MAX_CHANNELS}" if channels > MAX_CHANNELS else None


def modulation_rows(*rows: torch.Tensor | None) -> list[torch.Tensor | None]:
    """Each of ``rows`` (..., C) with its channels side by side, copied only where they are not."""
    return [None if row is None else row if row.stride(-1) == 1 else row.contiguous() for row in rows]


def modulation_strides(rows: Iterable[torch.Tensor | None]) -> list[int]:
    """The strides of each of ``rows`` (B or 1, P or 1, C) from image to image and from part to part; 0 where all have
    the same, or there are none.
    """
    return [0 if row is None or row.shape[dim] == 1 else row.stride(dim) for row in rows for dim in (0, 1)]


def last_part(rows: Iterable[torch.Tensor | None]) -> int:
    """The number of the last part of the tokens that has a row of its own in ``rows`` (B or 1, P or 1, C)."""
    return max((row.shape[1] - 1 for row in rows if row is not None and row.dim() == 3), default=0)


@triton.jit
def image_and_part(r, L, part, last):
    """The image of each row of [B * L], and the part of its tokens that the row is of: ``part`` of them, the last also
    all that are left.
    """
    return r // L, tl.minimum(r % L // part, last)
