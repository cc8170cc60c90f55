"""The activation in the epilogue of cuBLASLt's GEMM, through PyTorch.

PyTorch's GELU there is the tanh form on CUDA (in the epilogue as in the code that stands in for it), the erf form on
the CPU: so ``gelu_tanh`` and ``relu`` only, and ``gelu_tanh`` only on CUDA.
"""

from __future__ import annotations

import math

import torch

from ...target import Target
from ..spec import Arguments
from .constraints import why_not_epilogue

ACTS = ("gelu_tanh", "relu")


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why this GEMM can't compute it, or None."""
    if reason := why_not_epilogue(call, *ACTS):
        return reason
    if call.bias is None:
        return "needs a bias"
    if call.x.dim() == 0 or call.x.numel() == 0:
        return "x is empty"
    if _rows(call.x) is None:
        return f"x with strides {call.x.stride()} can't be viewed as 2-D"
    return None


def launch(x, weight, bias=None, act="none", gated=False, residual=None, gate_first=False) -> torch.Tensor:
    """As :func:`.reference.linear`."""
    rows = _rows(x)
    assert rows is not None and bias is not None, (
        "why_not has refused what has no bias, and strides that can't be viewed as 2-D"
    )
    out = torch._addmm_activation(bias, rows, weight.t(), use_gelu=act == "gelu_tanh")
    return out.view(*x.shape[:-1], weight.shape[0])


def _rows(x: torch.Tensor) -> torch.Tensor | None:
    """x as [M, K] without a copy, or None where that is impossible."""
    try:
        return x.view(math.prod(x.shape[:-1]), x.shape[-1])
    except RuntimeError:
        return None
