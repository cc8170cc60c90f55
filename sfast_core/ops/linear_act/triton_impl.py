"""The GEMM by PyTorch, then the activation in one Triton kernel in place: ``quick_gelu`` takes PyTorch three passes over the result."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

from ..constraints import why_no_triton, why_not_dtypes
from ..triton_launch import launcher
from .reference import ACTS

if TYPE_CHECKING:
    from ...target import Target

BLOCK = 2048


@triton.jit
def activation_kernel(
    h_ptr,  # [size], overwritten
    size,
    ACT: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """``h = act(h)`` in float32."""
    first = tl.program_id(0).to(tl.int64) * BLOCK
    i = tl.arange(0, BLOCK)
    live = first + i < size
    h = tl.load(h_ptr + first + i, mask=live).to(tl.float32)
    if ACT == "gelu":
        v = 0.5 * h * (1.0 + tl.erf(h * 0.7071067811865476))
    elif ACT == "gelu_tanh":
        # 0.5 (1 + tanh(u)) = sigmoid(2 u)
        v = h / (1.0 + tl.exp(-1.5957691216057308 * (h + 0.044715 * h * h * h)))
    elif ACT == "quick_gelu":
        v = h / (1.0 + tl.exp(-1.702 * h))
    elif ACT == "silu":
        v = h / (1.0 + tl.exp(-h))
    else:
        tl.static_assert(ACT == "relu")
        v = tl.where(h < 0.0, 0.0, h)  # unlike maximum, keeps NaN
    tl.store(h_ptr + first + i, v.to(h_ptr.dtype.element_ty), mask=live)


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> str | None:
    """The reason why this can't compute it, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x):
        return reason
    return None if act in ACTS else f"act {act!r} is not supported"


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> torch.Tensor:
    """As :func:`.reference.linear_act`, the product rounded to x's dtype before the activation."""
    h = F.linear(x, weight, bias)
    if h.numel() > 0:
        with torch.cuda.device_of(h):
            launcher(activation_kernel, (-(-h.numel() // BLOCK),))(h, h.numel(), ACT=act, BLOCK=BLOCK, num_warps=4)
    return h
