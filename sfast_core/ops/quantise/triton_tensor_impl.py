"""A tensor to float8 with a scale that is given, in one Triton kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..constraints import why_no_cuda, why_no_triton, why_not_dtypes
from ..triton_launch import launcher
from .triton_kernels import quantise_tensor_kernel

if TYPE_CHECKING:
    from ...target import Target

FLOAT8 = (torch.float8_e4m3fn, torch.float8_e5m2)
BLOCK = 4096


def why_not(target: Target, x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, rotate: int = 0) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_triton(target) or why_no_cuda(target, (8, 9)) or why_not_dtypes(x=x):
        return reason
    if dtype not in FLOAT8 or scale is None or rotate:
        return "is for float8 with one scale, not rotated"
    if scale.dtype != torch.float32 or scale.numel() != 1:
        return f"scale is {str(scale.dtype).removeprefix('torch.')} {list(scale.shape)}, must be one float32"
    return f"x is {list(x.shape)}" if x.numel() == 0 else None


def launch(x: torch.Tensor, dtype: torch.dtype, scale: torch.Tensor | None = None, rotate: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """As :func:`.reference.quantise`, bit for bit."""
    assert scale is not None
    source, q, copy = x.contiguous(), torch.empty(x.shape, dtype=dtype, device=x.device), torch.empty_like(scale)
    with torch.cuda.device_of(x):
        launcher(quantise_tensor_kernel, (-(-q.numel() // BLOCK),))(
            source, q, scale, copy, q.numel(), LIMIT=torch.finfo(dtype).max, BY_HAND=x.device.type != "cuda", BLOCK=BLOCK, num_warps=8
        )
    return q, copy
