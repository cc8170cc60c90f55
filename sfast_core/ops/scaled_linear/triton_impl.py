"""Products with a weight of 8 bits by a Triton kernel that reads through pointers, for GPUs without a better one.

H100, int8, 4608 x 3072 x 9216: 221 us through TMA, the CUDA extension 179. On others it is not measured.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton.language as tl

from ...target import Target
from ..needs import Needs
from ..packs import contiguous, dense
from ..spec import Arguments
from ..triton_launch import capacity, launcher
from .constraints import FLOAT8, why_not_quantised
from .triton_kernels import scaled_linear_kernel

GROUP_ROWS = 16  #: blocks of rows that share a column of the weight in L2
FEW_ROWS = 32
SPARE_BYTES = 1024  #: of shared memory, beside the buffers


class Tiling(NamedTuple):
    """One way to cut the result into tiles, and a program's warps and buffers."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int

    def bytes(self, x_size: int, weight_size: int) -> int:
        """Shared memory, for numbers of these sizes."""
        return (self.rows * x_size + self.columns * weight_size) * self.depth * self.stages + SPARE_BYTES


#: The first that fits into shared memory: compute capability 8.0, 9.0 and 10.0; 8.6, 8.9 and 12.0; those with 64 KB.
TILINGS = (Tiling(128, 256, 128, 8, 3), Tiling(128, 128, 128, 8, 3), Tiling(128, 128, 64, 8, 3))
TILING_OF_FEW = Tiling(FEW_ROWS, 64, 128, 4, 4)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    return why_no_kernel(target, call.weight) or why_not_quantised(call)


def why_no_kernel(target: Target, weight: torch.Tensor) -> str | None:
    """Whether the device has numbers of the weight's kind."""
    return Needs((8, 9)).why_not(target, {}) if weight.dtype in FLOAT8 else None


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`, rounded once."""
    operand = tl.int8 if x.dtype == torch.int8 else float8_of(x)
    return launch_as(operand, x, weight, weight_scale, bias, input_scale, out_dtype)


def launch_as(
    operand: tl.dtype,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor | None,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The same, multiplied in this dtype."""
    rows, matrix, (columns, depth) = dense(x), dense(weight), weight.shape
    out = torch.empty((*x.shape[:-1], columns), dtype=out_dtype, device=x.device)
    count = out.numel() // columns
    tiling = tiling_of(count, capacity(x.device)[1], x.itemsize, weight.itemsize)
    launcher(scaled_linear_kernel, (-(-count // tiling.rows) * -(-columns // tiling.columns),))(
        rows,
        matrix,
        *contiguous(input_scale, weight_scale, bias),
        out,
        count,
        columns,
        depth,
        GROUP_ROWS,
        ROW_STEP=int(input_scale is not None and input_scale.numel() > 1),
        COLUMN_STEP=int(weight_scale.numel() > 1),
        EVEN_K=depth % tiling.depth == 0,
        BLOCK_M=tiling.rows,
        BLOCK_N=tiling.columns,
        BLOCK_K=tiling.depth,
        OPERAND=operand,
        SUM=tl.int32 if operand == tl.int8 else tl.float32,
        num_warps=tiling.warps,
        num_stages=tiling.stages,
    )
    return out


def tiling_of(rows: int, shared_bytes: int, x_size: int, weight_size: int) -> Tiling:
    """The cut for so many rows, of numbers of these sizes."""
    if rows <= FEW_ROWS:
        return TILING_OF_FEW
    return next((tiling for tiling in TILINGS if tiling.bytes(x_size, weight_size) <= shared_bytes), TILINGS[-1])


def float8_of(x: torch.Tensor) -> tl.dtype:
    """In which dtype float8 is multiplied: its own, but float32 in Triton's interpreter."""
    if x.device.type == "cpu":
        return tl.float32
    return tl.float8e4nv if x.dtype == torch.float8_e4m3fn else tl.float8e5
