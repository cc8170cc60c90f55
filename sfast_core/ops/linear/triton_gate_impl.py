"""GEGLU as cuBLAS's GEMM and one pass for the gate: reads and writes 3 * I values a row, where eager moves 7 * I."""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_no_gate
from .reference import product
from .triton_kernels import gate_kernel

BLOCK_ROWS = 8
BLOCK_COLS = 256  # with 4 warps: two 16-byte loads of the value and two of the gate in flight per thread


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if reason := why_no_gate(call):
        return reason
    if call.weight.shape[0] % 2:
        return f"weight has an odd number of rows, {call.weight.shape[0]}"
    if call.weight.shape[0] > 2 * BLOCK_COLS * 65535:
        return f"weight has too many rows, {call.weight.shape[0]}"
    return None


def launch(x, weight, bias=None, act="none", gated=False, residual=None, gate_first=False) -> torch.Tensor:
    """As :func:`.reference.linear`; the gate is computed in float32 from the rounded result of the linear layer."""
    hidden = product(x, weight, bias).contiguous()
    inner = hidden.shape[-1] // 2
    out = hidden.new_empty((*hidden.shape[:-1], inner))
    if out.numel() == 0:
        return out
    rows = out.numel() // inner
    grid = (-(-rows // BLOCK_ROWS), -(-inner // BLOCK_COLS))
    launcher(gate_kernel, grid)(
        hidden,
        out,
        rows,
        inner,
        KIND=gate_kind(x.dtype, act),
        GATE_FIRST=gate_first,
        BLOCK_ROWS=BLOCK_ROWS,
        BLOCK_COLS=BLOCK_COLS,
        num_warps=4,
        enable_fp_fusion=True,
    )
    return out


def gate_kind(dtype: torch.dtype, act: str) -> str:
    """What the kernels compute: of GELU the polynomial only where its error vanishes in the result's rounding."""
    if act != "gelu":
        return {"gelu_tanh": "tanh", "silu": "silu"}[act]
    return "erf" if dtype == torch.float32 else "polynomial"
