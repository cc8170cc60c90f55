"""The Triton GroupNorm for small maps: one kernel, whose programs hold a group of an image each."""

from __future__ import annotations

import math

import torch
import triton

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from . import triton_image
from .triton_image import Image, Launch, addend
from .triton_kernels import group_norm_small

SMALL_ROWS = (64, 256, 1024)
SMALL_ELEMENTS = 32768  # of a group, padded to powers of two, in the registers of one program: 64 a thread
SMALL_LOADS = 8192  # of such a group; more, that is groups of 30 channels at 32 x 32, spill


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := triton_image.why_not(target, call):
        return reason
    image = Image(call.x, call.tail)
    if not small_rows(image, call.num_groups):
        return f"a group of {image.rows} x {image.channels // call.num_groups} is more than one program holds"
    return None


def launch(x, num_groups, weight, bias, eps, act="none", channel_add=None, tail=None) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, in float32: ``x + channel_add`` is not rounded to x's dtype."""
    call = Launch.of(x, weight, bias, channel_add, tail)
    if call.out.numel() > 0:
        group_channels = call.image.channels // num_groups
        rows, block_d = small_rows(call.image, num_groups), triton.next_power_of_2(group_channels)
        added, add_rows, add_stride = addend(x, call.channel_add)
        launcher(group_norm_small, (num_groups, x.shape[0]))(
            *call.image.pointers,
            call.weight,
            call.bias,
            added,
            call.out,
            add_rows,
            add_stride,
            call.image.rows,
            call.image.x.shape[1],
            call.image.tail_channels,
            group_channels,
            int(act == "silu"),
            eps,
            BLOCK_D=block_d,
            ROWS=rows,
            VEC=math.gcd(group_channels, call.image.alignment),
            num_warps=min(16, max(4, rows * block_d // 1024)),
        )
    return call.result(x)


def small_rows(image: Image, num_groups: int) -> int:
    """The rows that a program of the one-kernel way holds, or 0 where a group is too large for it."""
    group_channels = image.channels // num_groups
    rows = next((rows for rows in SMALL_ROWS if rows >= image.rows), 0)
    elements = rows * triton.next_power_of_2(group_channels)
    return rows if elements <= SMALL_ELEMENTS and elements // math.gcd(group_channels, 8) <= SMALL_LOADS else 0
