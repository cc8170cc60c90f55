"""A tensor to float8 with a scale that is given, in one Triton kernel."""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import FLOAT8, why_not_source, width
from .triton_kernels import quantise_tensor_kernel
from .triton_source import source_constants, source_of

BLOCKS = (4096, 2048, 1024)
_WARP_ELEMENTS = 512


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_not_source(call.x, call.act, call.times, call.front):
        return reason
    if call.dtype not in FLOAT8 or call.scale is None or call.rotate:
        return "is for float8 with one scale, not rotated"
    if call.scale.dtype != torch.float32 or call.scale.numel() != 1:
        return f"scale is {str(call.scale.dtype).removeprefix('torch.')} {list(call.scale.shape)}, must be one float32"
    return None


def launch(
    x, dtype, scale=None, rotate=0, act=None, times=None, front=None, by_range=False
) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.quantise`, bit for bit."""
    assert scale is not None
    q = torch.empty((*x.shape[:-1], width(x, front)), dtype=dtype, device=x.device)
    copy, columns = torch.empty_like(scale), q.shape[-1]
    if front is None and x.is_contiguous() and (times is None or times.is_contiguous()):  # one long row
        x, times, columns = x.view(1, -1), None if times is None else times.view(1, -1), q.numel()
    source, block = source_of(x, times, front), _block(columns)
    launcher(quantise_tensor_kernel, (q.numel() // columns * -(-columns // block),))(
        *source.pointers,
        q,
        scale,
        copy,
        columns,
        *source.places,
        **source_constants(source, x, act, times, front),
        LIMIT=torch.finfo(dtype).max,
        BLOCK=block,
        num_warps=block // _WARP_ELEMENTS,
    )
    return q, copy


def _block(columns: int) -> int:
    """The largest block that divides rows; of none, the smallest for short rows, the largest for long ones."""
    fitting = next((block for block in BLOCKS if columns % block == 0), None)
    return fitting or (BLOCKS[0] if columns > BLOCKS[0] else BLOCKS[-1])
