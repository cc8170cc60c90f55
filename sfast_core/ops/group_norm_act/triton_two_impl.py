"""The Triton GroupNorm for any map: a kernel that takes statistics, and one that applies them."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
import triton

from ..triton_launch import launcher
from .triton_image import Image, Launch, addend
from .triton_image import why_not as why_not
from .triton_kernels import group_norm_apply, group_statistics

MAX_CHUNKS = 64  # what group_norm_apply reads per group
STATISTICS_PROGRAMS = 400  # about three per SM on the largest GPUs; a constant, so that all GPUs add in the same order
STATISTICS_ELEMENTS = 8192  # per step of the loop: 32 a thread
APPLY_PROGRAMS = 1024
APPLY_CHANNELS = 64  # one 128-byte line of 16-bit values
APPLY_ROWS = 64


class Partials(NamedTuple):
    """Statistics of each group, chunk by chunk.

    Chunk i is of the image's rows ``[i * chunk_rows, (i + 1) * chunk_rows)``.
    """

    mean: torch.Tensor  #: [B, G, chunks] float32
    m2: torch.Tensor  #: [B, G, chunks] float32, the sum of squared deviations from that mean
    chunk_rows: int


class Tiling(NamedTuple):
    """How the statistics are cut into programs."""

    block_c: int  #: channels per program, padded to a power of two
    block_groups: int  #: groups per program
    chunk_rows: int
    chunks: int


def launch(x, num_groups, weight, bias, eps, act="none", channel_add=None, tail=None) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, in float32: ``x + channel_add`` is not rounded to x's dtype."""
    call = Launch.of(x, weight, bias, channel_add, tail)
    if call.out.numel() > 0:
        partials = statistics(call.image, num_groups, call.channel_add)
        apply(call.image, num_groups, call.weight, call.bias, eps, act, call.channel_add, partials, call.out)
    return call.result(x)


def tiling(batch: int, channels: int, groups: int, rows: int) -> Tiling:
    """Cut the statistics of ``batch`` images of ``rows`` rows into programs.

    A program takes whole groups, as many as fill a power of two of channels best (320 channels in 32 groups: 12, 12 and
    8 groups, that is 120, 120 and 80 of 128), starting at a multiple of 8 channels where possible, so that loads are 16
    bytes wide. It takes fewer channels where there would be too few programs otherwise (the VAE's last blocks: 128
    channels, one image).
    """
    group_channels = channels // groups
    best_fill, block_c, block_groups = 0.0, triton.next_power_of_2(group_channels), 1
    for candidate in (128, 256, 64, 512, 1024, 2048, 32):
        candidate_groups = _aligned_groups(candidate, group_channels, groups)
        if candidate_groups == 0:
            continue
        blocks = -(-groups // candidate_groups)
        fill = channels / (blocks * candidate)
        if batch * blocks * MAX_CHUNKS < STATISTICS_PROGRAMS // 3 and candidate > 32:
            fill /= 2
        if fill > best_fill * 1.05:
            best_fill, block_c, block_groups = fill, candidate, candidate_groups
    step = STATISTICS_ELEMENTS // block_c
    wanted = max(1, STATISTICS_PROGRAMS // (batch * -(-groups // block_groups)))
    chunk_rows = -(-rows // min(wanted, MAX_CHUNKS))
    chunk_rows = -(-chunk_rows // step) * step
    return Tiling(block_c, block_groups, chunk_rows, -(-rows // chunk_rows))


def _aligned_groups(block_c: int, group_channels: int, groups: int) -> int:
    """The most groups that fit in ``block_c`` channels and, repeated, start at multiples of 8 channels, or 0."""
    if block_c // group_channels >= groups:
        return groups
    fitting = block_c // group_channels
    return fitting - fitting % (8 // math.gcd(group_channels, 8))


def statistics(image: Image, num_groups: int, channel_add: torch.Tensor | None) -> Partials:
    """The statistics of ``image + channel_add``; the image is not empty."""
    batch, channels = image.x.shape[0], image.channels
    group_channels = channels // num_groups
    block_c, block_groups, chunk_rows, chunks = tiling(batch, channels, num_groups, image.rows)
    step = STATISTICS_ELEMENTS // block_c
    mean, m2 = torch.empty((2, batch, num_groups, chunks), dtype=torch.float32, device=image.x.device)
    added, add_rows, add_stride = addend(image.x, channel_add)
    launcher(group_statistics, (-(-num_groups // block_groups), chunks, batch))(
        *image.pointers,
        added,
        mean,
        m2,
        add_rows,
        add_stride,
        image.rows,
        image.x.shape[1],
        image.tail_channels,
        num_groups,
        group_channels,
        block_groups,
        chunk_rows,
        chunks,
        BLOCK_C=block_c,
        SLOTS=max(16, triton.next_power_of_2(block_groups)),
        ROWS=step,
        LANES=max(1, step // 4),
        VEC=math.gcd(block_groups * group_channels, image.alignment),
        num_warps=8,
    )
    return Partials(mean, m2, chunk_rows)


def apply(
    image: Image,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str,
    channel_add: torch.Tensor | None,
    partials: Partials,
    out: torch.Tensor,
) -> None:
    """Write ``act(GN(image + channel_add))`` to the channels_last ``out``, by the statistics; image isn't empty."""
    batch, channels = image.x.shape[0], image.channels
    group_channels = channels // num_groups
    channel_blocks = -(-channels // APPLY_CHANNELS)
    row_tiles = -(-image.rows // APPLY_ROWS)
    tiles = max(1, batch * channel_blocks * row_tiles // APPLY_PROGRAMS)
    if APPLY_CHANNELS % group_channels == 0:
        touched = APPLY_CHANNELS // group_channels
    else:
        touched = (APPLY_CHANNELS - 2) // group_channels + 2
    added, add_rows, add_stride = addend(image.x, channel_add)
    launcher(group_norm_apply, (channel_blocks * -(-row_tiles // tiles), batch))(
        *image.pointers,
        weight,
        bias,
        added,
        partials.mean,
        partials.m2,
        out,
        add_rows,
        add_stride,
        image.rows,
        image.x.shape[1],
        image.tail_channels,
        num_groups,
        group_channels,
        partials.chunk_rows,
        partials.mean.shape[2],
        tiles,
        int(act == "silu"),
        eps,
        BLOCK_C=APPLY_CHANNELS,
        SLOTS=max(8, triton.next_power_of_2(touched)),
        ROWS=APPLY_ROWS,
        CHUNKS=MAX_CHUNKS,
        num_warps=8,
    )
