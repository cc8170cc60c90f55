"""Launches of the Triton GroupNorm: how the work is cut, and what it refuses."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch

from ..constraints import why_no_triton
from ..triton_launch import launcher
from . import cuda_cluster_impl
from .constraints import why_not_arguments
from .reference import channels_of
from .triton_kernels import group_norm_apply, group_norm_small, group_statistics

if TYPE_CHECKING:
    from ...target import Target

MAX_GROUP_CHANNELS = 2048
MAX_CHUNKS = 64  # what group_norm_apply reads per group
STATISTICS_PROGRAMS = 400  # about three per SM on the largest GPUs; a constant, so that all GPUs add in the same order
STATISTICS_ELEMENTS = 8192  # per step of the loop: 32 a thread
APPLY_PROGRAMS = 1024
APPLY_CHANNELS = 64  # one 128-byte line of 16-bit values
APPLY_ROWS = 64
SMALL_ROWS = (64, 256, 1024)
SMALL_ELEMENTS = 32768  # of a group, padded to powers of two, in the registers of one program: 64 a thread
SMALL_LOADS = 8192  # of such a group; more, that is groups of 30 channels at 32 x 32, spill

#: Pixels up to which one kernel in clusters of blocks beats two: H100, us, 2x320x64x64 11.3 and 17.1, 2x1280x32x32 9.4 and 16.9; 2x320x128x128
#: 39.6 and 30.9. So the two aren't compiled there, at a second each.
CLUSTER_PIXELS = 64 * 64


class Image(NamedTuple):
    """What is normalised: x and, behind its channels, those of tail. Both channels_last."""

    x: torch.Tensor
    tail: torch.Tensor | None = None

    @classmethod
    def of(cls, x: torch.Tensor, tail: torch.Tensor | None) -> Image:
        """Both channels_last, copied only where they are not."""
        return cls(*(None if t is None else t.contiguous(memory_format=torch.channels_last) for t in (x, tail)))  # type: ignore[arg-type]

    @property
    def tail_channels(self) -> int:
        """How many channels are the tail's."""
        return self.channels - self.x.shape[1]

    @property
    def channels(self) -> int:
        """How many channels there are in all."""
        return channels_of(self.x, self.tail)

    @property
    def rows(self) -> int:
        """How many pixels there are."""
        return self.x.shape[2] * self.x.shape[3]

    @property
    def pointers(self) -> tuple[torch.Tensor, torch.Tensor]:
        """What the kernels are told of the tensors: any tail where there is none."""
        return self.x, self.x if self.tail is None else self.tail

    @property
    def alignment(self) -> int:
        """8, or the largest divisor of 8 that divides both tensors' channels."""
        return math.gcd(self.x.shape[1], self.tail_channels, 8)


class Partials(NamedTuple):
    """Statistics of each group, chunk by chunk. Chunk i is of the image's rows ``[i * chunk_rows, (i + 1) * chunk_rows)``."""

    mean: torch.Tensor  #: [B, G, chunks] float32
    m2: torch.Tensor  #: [B, G, chunks] float32, the sum of squared deviations from that mean
    chunk_rows: int


class Cut(NamedTuple):
    """How the statistics are cut into programs."""

    block_c: int  #: channels per program, padded to a power of two
    block_groups: int  #: groups per program
    chunk_rows: int
    chunks: int


def why_not(
    target: Target,
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
    tail: torch.Tensor | None = None,
) -> str | None:
    """The reason why the kernels can't compute this, or None."""
    if reason := why_no_triton(target) or why_not_arguments(x, num_groups, weight, bias, act, channel_add, tail):
        return reason
    channels = channels_of(x, tail)
    if channels // num_groups > MAX_GROUP_CHANNELS:
        return f"groups of {channels // num_groups} channels are larger than {MAX_GROUP_CHANNELS}"
    if x.shape[0] > 65535:
        return f"a batch of {x.shape[0]} is larger than 65535"
    if x.shape[2] * x.shape[3] >= 2**31 - 2**16:
        return f"images of {x.shape[2]} x {x.shape[3]} are too large"
    if x.shape[2] * x.shape[3] > CLUSTER_PIXELS or small_rows(Image(x, tail), num_groups):
        return None
    if cuda_cluster_impl.why_not(target, x, num_groups, weight, bias, eps, act, channel_add, tail) is None:
        return f"groups of {x.shape[2]} x {x.shape[3]} x {channels // num_groups} take two kernels, and one in clusters is faster"
    return None


def launch(
    x: torch.Tensor,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
    tail: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, with float32 arithmetic throughout: ``x + channel_add`` is not rounded to x's dtype."""
    out_format = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    image = Image.of(x, tail)
    out = torch.empty((x.shape[0], image.channels, *x.shape[2:]), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    if out.numel() > 0:
        weight, bias = (None if t is None else t.contiguous() for t in (weight, bias))
        if channel_add is not None and channel_add.stride(1) != 1:  # rows may lie apart: slices of one packed projection do
            channel_add = channel_add.contiguous()
        with torch.cuda.device_of(x):
            if small_rows(image, num_groups):
                _small(image, num_groups, weight, bias, eps, act, channel_add, out)
            else:
                partials = statistics(image, num_groups, channel_add)
                apply(image, num_groups, weight, bias, eps, act, channel_add, partials, out)
    return out.contiguous(memory_format=out_format)


def small_rows(image: Image, num_groups: int) -> int:
    """The rows that a program of the one-kernel way holds, or 0 where a group is too large for it."""
    group_channels = image.channels // num_groups
    rows = next((rows for rows in SMALL_ROWS if rows >= image.rows), 0)
    elements = rows * _power_of_two(group_channels)
    return rows if elements <= SMALL_ELEMENTS and elements // math.gcd(group_channels, 8) <= SMALL_LOADS else 0


def cut(batch: int, channels: int, groups: int, rows: int) -> Cut:
    """Cut the statistics of ``batch`` images of ``rows`` rows into programs.

    A program takes whole groups, as many as fill a power of two of channels best (320 channels in 32 groups: 12, 12 and 8 groups,
    that is 120, 120 and 80 of 128), starting at a multiple of 8 channels where possible, so that loads are 16 bytes wide. It takes
    fewer channels where there would be too few programs otherwise (the VAE's last blocks: 128 channels, one image).
    """
    group_channels = channels // groups
    best_fill, block_c, block_groups = 0.0, _power_of_two(group_channels), 1
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
    return Cut(block_c, block_groups, chunk_rows, -(-rows // chunk_rows))


def _aligned_groups(block_c: int, group_channels: int, groups: int) -> int:
    """The most groups that fit in ``block_c`` channels and, repeated, start at multiples of 8 channels; 0 where none do."""
    if block_c // group_channels >= groups:
        return groups
    fitting = block_c // group_channels
    return fitting - fitting % (8 // math.gcd(group_channels, 8))


def statistics(image: Image, num_groups: int, channel_add: torch.Tensor | None) -> Partials:
    """The statistics of ``image + channel_add``; the image is not empty."""
    batch, channels = image.x.shape[0], image.channels
    group_channels = channels // num_groups
    block_c, block_groups, chunk_rows, chunks = cut(batch, channels, num_groups, image.rows)
    step = STATISTICS_ELEMENTS // block_c
    mean, m2 = torch.empty((2, batch, num_groups, chunks), dtype=torch.float32, device=image.x.device)
    addend, add_rows, add_stride = _addend(image.x, channel_add)
    launcher(group_statistics, (-(-num_groups // block_groups), chunks, batch))(
        *image.pointers,
        addend,
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
        SLOTS=max(16, _power_of_two(block_groups)),
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
    """Write ``act(GN(image + channel_add))`` to ``out``, given the statistics; out is channels_last, the image not empty."""
    batch, channels = image.x.shape[0], image.channels
    group_channels = channels // num_groups
    channel_blocks = -(-channels // APPLY_CHANNELS)
    row_tiles = -(-image.rows // APPLY_ROWS)
    tiles = max(1, batch * channel_blocks * row_tiles // APPLY_PROGRAMS)
    if APPLY_CHANNELS % group_channels == 0:
        touched = APPLY_CHANNELS // group_channels
    else:
        touched = (APPLY_CHANNELS - 2) // group_channels + 2
    addend, add_rows, add_stride = _addend(image.x, channel_add)
    launcher(group_norm_apply, (channel_blocks * -(-row_tiles // tiles), batch))(
        *image.pointers,
        weight,
        bias,
        addend,
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
        SLOTS=max(8, _power_of_two(touched)),
        ROWS=APPLY_ROWS,
        CHUNKS=MAX_CHUNKS,
        num_warps=8,
    )


def _small(
    image: Image,
    num_groups: int,
    weight: torch.Tensor | None,
    bias: torch.Tensor | None,
    eps: float,
    act: str,
    channel_add: torch.Tensor | None,
    out: torch.Tensor,
) -> None:
    group_channels = image.channels // num_groups
    rows = small_rows(image, num_groups)
    block_d = _power_of_two(group_channels)
    addend, add_rows, add_stride = _addend(image.x, channel_add)
    launcher(group_norm_small, (num_groups, image.x.shape[0]))(
        *image.pointers,
        weight,
        bias,
        addend,
        out,
        add_rows,
        add_stride,
        image.rows,
        image.x.shape[1],
        image.tail_channels,
        group_channels,
        int(act == "silu"),
        eps,
        BLOCK_D=block_d,
        ROWS=rows,
        VEC=math.gcd(group_channels, image.alignment),
        num_warps=min(16, max(4, rows * block_d // 1024)),
    )


def _addend(x: torch.Tensor, channel_add: torch.Tensor | None) -> tuple[torch.Tensor, int, int]:
    """What the kernels are told of channel_add: the tensor (any, where there is none), its rows, and the elements from one to the next.

    0 elements where all images share a row.
    """
    if channel_add is None:
        return x, 0, 0
    return channel_add, channel_add.shape[0], 0 if channel_add.shape[0] == 1 else channel_add.stride(0)


def _power_of_two(size: int) -> int:
    """The smallest power of two that is not below ``size``."""
    return 1 << (size - 1).bit_length()
