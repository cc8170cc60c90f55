"""The activation in the epilogue of cuBLASLt's GEMM, through PyTorch.

PyTorch's GELU there is the tanh form on CUDA (in the epilogue as in the code that stands in for it), the erf form on the CPU: so
``gelu_tanh`` and ``relu`` only, and ``gelu_tanh`` only on CUDA.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ..constraints import why_no_cuda, why_not_dtypes

if TYPE_CHECKING:
    from ...target import Target

ACTS = ("gelu_tanh", "relu")


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> str | None:
    """The reason why this GEMM can't compute it, or None."""
    if reason := why_no_cuda(target) or why_not_dtypes(x=x):
        return reason
    if act not in ACTS:
        return f"act {act!r} is not an epilogue of it"
    if bias is None:
        return "needs a bias"
    if weight.dtype != x.dtype or bias.dtype != x.dtype:
        return f"x is {x.dtype}, weight {weight.dtype}, bias {bias.dtype}"
    if x.dim() == 0 or x.numel() == 0:
        return "x is empty"
    if _rows(x) is None:
        return f"x with strides {x.stride()} can't be viewed as 2-D"
    return None


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor, act: str) -> torch.Tensor:
    """As :func:`.reference.linear_act`."""
    rows = _rows(x)
    assert rows is not None, "why_not has refused strides that can't be viewed as 2-D"
    out = torch._addmm_activation(bias, rows, weight.t(), use_gelu=act == "gelu_tanh")
    return out.view(*x.shape[:-1], weight.shape[0])


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """x as [M, K] without a copy, or None where that is impossible."""
    try:
        return x.view(math.prod(x.shape[:-1]), x.shape[-1])
    except RuntimeError:
        return None
