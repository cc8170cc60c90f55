"""In which dtype Triton kernels multiply."""

from __future__ import annotations

import torch
import triton.language as tl


def operand(x: torch.Tensor) -> tl.dtype:
    """The dtype of the products of ``x``, float16 or bfloat16.

    Triton's interpreter (on a CPU) would multiply bfloat16's bits as integers.
    """
    if x.device.type == "cpu":
        return tl.float32
    return tl.bfloat16 if x.dtype == torch.bfloat16 else tl.float16


def dtype_of(x: torch.Tensor) -> tl.dtype:
    """What Triton calls the dtype of ``x``, float16, bfloat16 or float32."""
    return {torch.float16: tl.float16, torch.bfloat16: tl.bfloat16, torch.float32: tl.float32}[x.dtype]
