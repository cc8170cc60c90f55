"""The GEMM by PyTorch, then ``quick_gelu`` in one Triton kernel in place, which takes PyTorch three passes over the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..constraints import why_no_triton, why_not_dtypes
from ..triton_launch import launcher

if TYPE_CHECKING:
    from ...target import Target

BLOCK = 2048


@triton.jit
def quick_gelu_kernel(
    h_ptr,  # [size], overwritten
    size,
    BLOCK: tl.constexpr,
):
    """``h = h * sigmoid(1.702 h)`` in float32."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = tl.arange(0, BLOCK)
    live = first + i < size
    h = tl.load(h_ptr + first + i, mask=live).to(tl.float32)
    tl.store(h_ptr + first + i, (h / (1.0 + tl.exp(-1.702 * h))).to(h_ptr.dtype.element_ty), mask=live)


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> str | None:
    """The reason why this can't compute it, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x):
        return reason
    return None if act == "quick_gelu" else f"PyTorch computes {act} in one pass too"


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> torch.Tensor:
    """As :func:`.reference.linear_act`, the product rounded to x's dtype before the activation."""
    h = F.linear(x, weight, bias)
    if h.numel() > 0:
        with torch.cuda.device_of(h):
            launcher(quick_gelu_kernel, (-(-h.numel() // BLOCK),))(h, h.numel(), BLOCK=BLOCK, num_warps=4)
    return h
