"""``sfast_linear_eight_bit`` of csrc/sfast.h: its parameters in ctypes, and a call."""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch

KINDS = {torch.int8: 0, torch.float8_e4m3fn: 1}  #: SFAST_INT8, SFAST_E4M3
ACTS = {"none": 0, "silu": 1, "gelu": 3, "gelu_tanh": 4}
DTYPES = {torch.float16: 1, torch.bfloat16: 2}
_int32, _int64, _pointer = ctypes.c_int32, ctypes.c_int64, ctypes.c_void_p
SIGNATURE = (
    [_pointer] * 3  # x, weight, the gate's weight
    + [_pointer, _int32]  # scales of the rows, from one to the next
    + [_pointer, _pointer, _int32]  # scales of the columns and of the gate's, from one to the next
    + [_pointer] * 3  # bias, the gate's bias, out
    + [_int64] * 3  # rows, columns, depth
    + [_int32] * 3  # kind, act, dtype
    + [_int32] * 3  # a tile's columns, blocks that share them, groups of rows at a time
    + [_pointer]  # stream
)


class Cut(NamedTuple):
    """How the result is cut: tiles of 128 rows and so many ``columns``; ``sharing`` blocks share them; ``band`` groups of ``sharing`` tiles' rows at a time."""

    columns: int
    sharing: int
    band: int


def call(
    function: Any,
    cut: Cut,
    out: torch.Tensor,
    x: torch.Tensor,
    x_scales: torch.Tensor,
    weight: torch.Tensor,
    weight_scales: torch.Tensor,
    bias: torch.Tensor | None,
    act: str = "none",
    gate_weight: torch.Tensor | None = None,
    gate_scales: torch.Tensor | None = None,
    gate_bias: torch.Tensor | None = None,
) -> int:
    """Queue the kernel into ``out`` [..., N] on the current device's current stream; its status. Tensors are dense."""
    columns, depth = weight.shape

    def address(tensor: torch.Tensor | None) -> int | None:
        return None if tensor is None else tensor.data_ptr()

    status: int = function(
        address(x),
        address(weight),
        address(gate_weight),
        address(x_scales),
        int(x_scales.numel() > 1),
        address(weight_scales),
        address(gate_scales),
        int(weight_scales.numel() > 1),
        address(bias),
        address(gate_bias),
        address(out),
        out.numel() // columns,
        columns,
        depth,
        KINDS[x.dtype],
        ACTS[act],
        DTYPES[out.dtype],
        *cut,
        torch.cuda.current_stream().cuda_stream,
    )
    return status
