"""group_norm_act in one kernel of the CUDA extension that reads its input once, on GPUs with thread block clusters.

A cluster of blocks has a few groups of one image and keeps them in its shared memory. How an image is cut is decided
here; the kernel is in ``csrc/group_norm_cluster.cu``. A concatenation before the norm takes no pass: the kernel reads
both tensors.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch

from ...native import load
from ...target import Target, probed
from ..packs import PACK_BYTES, dense
from ..spec import Arguments
from .constraints import why_not_arguments
from .cuda_impl import ACTS, MAX_POSITIONS, arguments
from .reference import channels_of

MOST_BLOCKS = 8  #: of a cluster
MOST_GROUPS = 16  #: of a cluster
MOST_THREADS = 256  #: of a block
MOST_IMAGES = 65535
ROW_BYTES = 64  #: that a block reads side by side at least, where groups allow it: two sectors of L2
OWN_BYTES = 2048  #: of shared memory, a block's moments and what CUDA keeps for itself
#: Share of the multiprocessors below which an image is cut into more blocks.
BUSY = 0.7


class Tiling(NamedTuple):
    """How the work is cut: groups of a cluster, and blocks that share its rows."""

    groups: int
    blocks: int


def tiling(
    batch: int, positions: int, channels: int, num_groups: int, element_bytes: int, target: Target
) -> Tiling | None:
    """The cut for images of ``positions`` pixels that keeps ``target`` busy with the smallest clusters, or None."""
    group_bytes = channels // num_groups * element_bytes
    widths = [
        groups
        for groups in range(1, min(num_groups, MOST_GROUPS) + 1)
        if num_groups % groups == 0
        and groups * group_bytes % PACK_BYTES == 0
        and groups * group_bytes <= MOST_THREADS * PACK_BYTES
    ]
    if not widths:
        return None
    groups = next((groups for groups in widths if groups * group_bytes >= ROW_BYTES), widths[-1])
    packs = groups * group_bytes // PACK_BYTES
    slots = MOST_THREADS // packs  # rows that a block takes at once
    fitting = None
    for blocks in (1, 2, 4, MOST_BLOCKS):
        rows = math.ceil(math.ceil(positions / blocks) / slots) * slots
        if rows * packs * PACK_BYTES + OWN_BYTES > target.shared_memory_bytes:
            continue
        fitting = Tiling(groups, blocks)
        if batch * (num_groups // groups) * blocks >= BUSY * target.sm_count:
            break
    return fitting


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_arguments(call):
        return reason
    channels, positions = channels_of(call.x, call.tail), call.x.shape[2] * call.x.shape[3]
    if call.x.numel() == 0 or call.x.shape[0] > MOST_IMAGES or positions > MAX_POSITIONS:
        return f"images of {call.x.shape[2]} x {call.x.shape[3]}, {call.x.shape[0]} of them"
    pack = PACK_BYTES // call.x.element_size()
    if channels // call.num_groups < pack or call.x.shape[1] % pack or channels % pack:
        behind = channels - call.x.shape[1]
        return (
            f"groups of {channels // call.num_groups} channels, of {call.x.shape[1]} and {behind}, are not made of"
            f" {pack} channels each"
        )
    if tiling(call.x.shape[0], positions, channels, call.num_groups, call.x.element_size(), target) is None:
        return (
            f"a group of {positions} x {channels // call.num_groups} doesn't fit into the shared memory of"
            f" {MOST_BLOCKS} blocks"
        )
    return None


def launch(x, num_groups, weight, bias, eps, act="none", channel_add=None, tail=None) -> torch.Tensor:
    """As :func:`.reference.group_norm_act`, in float32: ``x + channel_add`` is not rounded to x's dtype."""
    out_format = torch.channels_last if x.is_contiguous(memory_format=torch.channels_last) else torch.contiguous_format
    x, tail = (None if t is None else dense(t, torch.channels_last) for t in (x, tail))
    n, channels, h, w = x.shape[0], channels_of(x, tail), x.shape[2], x.shape[3]
    out = torch.empty((n, channels, h, w), dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    chosen = tiling(n, h * w, channels, num_groups, x.element_size(), probed(x.device))
    assert chosen is not None, "why_not has been asked"
    load.launch(
        "sfast_group_norm_cluster",
        x.device,
        f"group_norm_act for x {tuple(x.shape)} {x.dtype}",
        **arguments(x, tail, out, num_groups, weight, bias, eps, channel_add),
        flags=ACTS[act],
        cluster_groups=chosen.groups,
        cluster_blocks=chosen.blocks,
    )
    return out.contiguous(memory_format=out_format)
