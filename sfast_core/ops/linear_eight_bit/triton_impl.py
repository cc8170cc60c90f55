"""Products of 8-bit operands by Triton: through TMA where there is any, through pointers elsewhere."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor  # Triton 3.4 and later

from ..triton_launch import capacity, launcher
from .triton_kernels import linear_eight_bit_kernel, linear_eight_bit_tma_kernel

GROUP_ROWS = 16  # blocks of rows that share a column of the weight in L2


class Cut(NamedTuple):
    """One way to cut the result into tiles, and a program's warps and buffers."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int
    flatten: bool = True


class Operands(NamedTuple):
    """The tensors of a call, each as the kernels take it."""

    x: torch.Tensor
    x_scales: torch.Tensor
    weight: torch.Tensor
    weight_scales: torch.Tensor
    bias: torch.Tensor | None
    gate_weight: torch.Tensor | None
    gate_scales: torch.Tensor | None
    gate_bias: torch.Tensor | None

    def steps(self) -> dict[str, int]:
        """From one row's or column's scale to the next: 0 where all have one."""
        return {"ROW_STEP": int(self.x_scales.numel() > 1), "COLUMN_STEP": int(self.weight_scales.numel() > 1)}


def launch_tma(operands: Operands, out: torch.Tensor, act: str, cut: Cut, group_rows: int = GROUP_ROWS) -> torch.Tensor:
    """Compute into ``out`` [..., N] with this cut; returns it. Operands are contiguous and aligned to 16 bytes, K is a multiple of 16."""
    (columns, depth), rows = operands.weight.shape, out.numel() // out.shape[-1]
    box = [cut.columns, cut.depth]
    weight = TensorDescriptor(operands.weight, [columns, depth], [depth, 1], box)
    gate = None
    if operands.gate_weight is not None:
        gate = TensorDescriptor(operands.gate_weight, [columns, depth], [depth, 1], box)
    blocks = -(-rows // cut.rows) * -(-columns // cut.columns)
    programs = min(capacity(out.device)[0], blocks)
    with torch.cuda.device_of(out):
        launcher(linear_eight_bit_tma_kernel, (programs,))(
            TensorDescriptor(operands.x, [rows, depth], [depth, 1], [cut.rows, cut.depth]),
            weight,
            gate,
            operands.x_scales,
            operands.weight_scales,
            operands.gate_scales,
            operands.bias,
            operands.gate_bias,
            TensorDescriptor(out, [rows, columns], [columns, 1], [cut.rows, cut.columns]),
            rows,
            columns,
            depth,
            group_rows,
            programs,
            **operands.steps(),
            ACT=act,
            BLOCK_M=cut.rows,
            BLOCK_N=cut.columns,
            BLOCK_K=cut.depth,
            **_types(operands.x),
            FLATTEN=cut.flatten,
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
    return out


def launch_pointers(operands: Operands, out: torch.Tensor, act: str, cut: Cut, group_rows: int = GROUP_ROWS) -> torch.Tensor:
    """As :func:`launch_tma` for any GPU; K is any."""
    (columns, depth), rows = operands.weight.shape, out.numel() // out.shape[-1]
    with torch.cuda.device_of(out):
        launcher(linear_eight_bit_kernel, (-(-rows // cut.rows) * -(-columns // cut.columns),))(
            operands.x,
            operands.weight,
            operands.gate_weight,
            operands.x_scales,
            operands.weight_scales,
            operands.gate_scales,
            operands.bias,
            operands.gate_bias,
            out,
            rows,
            columns,
            depth,
            group_rows,
            **operands.steps(),
            ACT=act,
            EVEN_K=depth % cut.depth == 0,
            BLOCK_M=cut.rows,
            BLOCK_N=cut.columns,
            BLOCK_K=cut.depth,
            **_types(operands.x),
            num_warps=cut.warps,
            num_stages=cut.stages,
        )
    return out


def _types(x: torch.Tensor) -> dict[str, Any]:
    """In which dtype operands are multiplied and summed. Triton's interpreter multiplies float8 as float32."""
    if x.dtype == torch.int8:
        return {"OPERAND": tl.int8, "SUM": tl.int32}
    return {"OPERAND": tl.float8e4nv if x.device.type == "cuda" else tl.float32, "SUM": tl.float32}
