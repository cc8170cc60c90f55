"""Norm, modulation, activation, repetition and edges in one Triton kernel: a pixel's channels are read where they are
needed, and written once.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ...target import Target
from ..conv2d_act.reference import each
from ..packs import contiguous
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_rows import row_tile, why_too_long
from .reference import ACTS, EDGES, out_size
from .triton_kernels import norm_pad_video_kernel


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    channels = call.x.shape[1]
    if call.act not in ACTS or call.edge not in EDGES:
        return f"act {call.act!r} or edge {call.edge!r} is not supported"
    if reason := why_too_long(channels):
        return reason
    size, edges = out_size(call.x.shape, call.times, call.pad), each(call.pad, 6)[2:]
    if min(size) <= 0 or call.x.numel() == 0:
        return f"x is {list(call.x.shape)}, the result has {size[0]} x {size[1]} x {size[2]} pixels"
    if min(edges) < 0 or (
        call.edge == "reflect" and any(p >= s for p, s in zip(edges, _twice(call.x.shape[3:]), strict=True))
    ):
        return f"edges of {edges} for {list(call.x.shape)}"
    if call.lead is not None and (
        call.lead.dim() != 5 or call.lead.shape[:2] != call.x.shape[:2] or tuple(call.lead.shape[3:]) != size[1:]
    ):
        return f"lead is {list(call.lead.shape)}, must be [{call.x.shape[0]}, {channels}, F, {size[1]}, {size[2]}]"
    if call.lead is not None and call.lead.dtype != call.x.dtype:
        return "lead and x differ in dtype"
    for name, vector in (
        ("weight", call.weight),
        ("bias", call.bias),
        ("factor", call.factor),
        ("shift", call.shift),
    ):
        rows = {(channels,)} if name in ("weight", "bias") else {(1, channels), (call.x.shape[0], channels)}
        if vector is not None and (tuple(vector.shape) not in rows or not vector.is_floating_point()):
            return f"{name} is {list(vector.shape)} {vector.dtype}"
    return None


def _twice(sizes: Sequence[int]) -> list[int]:
    return [size for size in sizes for _ in range(2)]


def launch(
    x,
    eps=None,
    weight=None,
    factor=None,
    shift=None,
    act="none",
    times=1,
    pad=0,
    edge="replicate",
    lead=None,
    bias=None,
) -> torch.Tensor:
    """As :func:`.reference.norm_pad_video`. What leads is copied by PyTorch's kernel,
    which reads it however it lies.
    """
    times, pad = each(times, 3), each(pad, 6)
    video = x.contiguous(memory_format=torch.channels_last_3d)
    batch, channels = x.shape[:2]
    size = out_size(x.shape, times, pad)
    frames = 0 if lead is None else lead.shape[2]
    out = torch.empty(
        (batch, channels, frames + size[0], *size[1:]),
        dtype=x.dtype,
        device=x.device,
        memory_format=torch.channels_last_3d,
    )
    if lead is not None:
        out[:, :, :frames].copy_(lead)
    tile = row_tile(channels)
    rows = size[0] * size[1] * size[2]
    vectors = contiguous(bias, weight, factor, shift)
    launcher(norm_pad_video_kernel, (-(-rows // tile.rows), batch))(
        video,
        *vectors,
        out,
        rows,
        size[1],
        size[2],
        frames * size[1] * size[2],
        *x.shape[2:],
        channels,
        *(0 if vector is None or vector.shape[0] == 1 else channels for vector in vectors[2:]),
        *times,
        pad[0],
        pad[2],
        pad[4],
        0.0 if eps is None else eps,
        NORM=eps is not None,
        SILU=act == "silu",
        MOVED=any(pad) or max(times) > 1,
        REFLECT=edge == "reflect",
        BLOCK_C=tile.block,
        ROWS=tile.rows,
        num_warps=tile.warps,
    )
    return out
