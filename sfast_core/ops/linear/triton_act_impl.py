"""The GEMM by PyTorch, then ``quick_gelu`` in place by one Triton kernel, where PyTorch takes three passes."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from ...target import Target
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_not_epilogue
from .reference import product

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


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why this can't compute it, or None."""
    if reason := why_not_epilogue(call, "gelu", "gelu_tanh", "quick_gelu", "silu", "relu"):
        return reason
    return None if call.act == "quick_gelu" else f"PyTorch computes {call.act} in one pass too"


def launch(x, weight, bias=None, act="none", gated=False, residual=None, gate_first=False) -> torch.Tensor:
    """As :func:`.reference.linear`, the product rounded to x's dtype before the activation."""
    h = product(x, weight, bias)
    if h.numel() > 0:
        launcher(quick_gelu_kernel, (-(-h.numel() // BLOCK),))(h, h.numel(), BLOCK=BLOCK, num_warps=4)
    return h
