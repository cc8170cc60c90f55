"""GGUF's blocks to values in one Triton kernel: their bytes are read once, what they stand for is written once."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..needs import FLOATS
from ..spec import Arguments
from ..triton_launch import launcher
from .reference import KINDS
from .triton_kernels import dequantise_blocks_kernel

_PROGRAM_VALUES = 4096
_BY_16 = ("Q2_K", "Q3_K", "Q6_K")  # with a scale for each 16 values; the others with ``_K`` and IQ4_XS for each 32
_ROUND = {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if call.kind not in KINDS or call.kind == "BF16":
        return f"is not for {call.kind}"
    if not call.data.is_contiguous() or call.data.storage_offset() % 2 or call.data.numel() == 0:
        return "data has gaps, or begins at an odd byte"
    if call.dtype in FLOATS and call.computed_in in FLOATS:
        return None
    return f"makes no {call.dtype} by way of {call.computed_in}"


def launch(data, kind, shape, dtype, computed_in) -> torch.Tensor:
    """As :func:`.reference.dequantise_blocks`, bit for bit where it is computed in 16 bits."""
    values, size = KINDS[kind]
    out = torch.empty(tuple(shape), dtype=dtype, device=data.device)
    blocks = out.numel() // values
    per_program = _PROGRAM_VALUES // values
    group = 16 if kind in _BY_16 else 32
    launcher(dequantise_blocks_kernel, (triton.cdiv(blocks, per_program),))(
        data,
        out,
        blocks,
        KIND=kind,
        BYTES=size,
        GROUPS=values // group,
        VALUES=group,
        ROUND=_ROUND[computed_in],
        BLOCKS=per_program,
        num_warps=8,
    )
    return out
