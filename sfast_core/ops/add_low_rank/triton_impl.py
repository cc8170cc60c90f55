"""LoRAs added to a weight in one Triton kernel, which reads and writes the weight once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..needs import dtype_name
from ..spec import Arguments
from ..triton_launch import launcher
from ..triton_operand import operand
from .reference import GROUP
from .triton_kernels import add_low_rank_kernel

_BLOCK = 64, 128  #: rows and columns of a program


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    weight, up, down, factors = call.weight, call.up, call.down, call.factors
    if down.dtype != up.dtype or factors.dtype != torch.float32:
        return f"up is {dtype_name(up.dtype)}, down {dtype_name(down.dtype)}, factors {dtype_name(factors.dtype)}"
    if (
        up.dim() != 2
        or down.dim() != 2
        or up.shape[1] % GROUP
        or tuple(factors.shape) != (up.shape[1],)
        or down.shape[0] != up.shape[1]
    ):
        return (
            f"up is {list(up.shape)}, down {list(down.shape)}, factors {list(factors.shape)}: ranks must be multiples"
            f" of {GROUP}"
        )
    if weight.numel() == 0 or up.shape[0] * down.shape[1] != weight.numel() or up.shape[0] != weight.shape[0]:
        return f"weight is {list(weight.shape)}, up {list(up.shape)}, down {list(down.shape)}"
    return None


def launch(weight, up, down, factors) -> torch.Tensor:
    """As :func:`.reference.add_low_rank`, the factors behind the sums of a group."""
    (rows, ranks), columns = up.shape, down.shape[1]
    source = weight.contiguous()
    out = torch.empty_like(source)
    launcher(add_low_rank_kernel, (triton.cdiv(rows, _BLOCK[0]) * triton.cdiv(columns, _BLOCK[1]),))(
        source,
        up.contiguous(),
        down.contiguous(),
        factors.contiguous(),
        out,
        rows,
        columns,
        RANKS=ranks,
        GROUP=GROUP,
        OPERAND=tl.float32 if up.dtype == torch.float32 else operand(up),
        BLOCK_M=_BLOCK[0],
        BLOCK_N=_BLOCK[1],
        num_warps=4,
    )
    return out
