"""Products of e4m3 by PyTorch's own with a scale for each matrix, which is cuBLASLt's first algorithm.

H100: 512 x 12288 x 3072 31 us, ours 38.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..needs import HALVES
from ..packs import dense
from ..spec import Arguments
from .constraints import why_not_multiples, why_not_out, why_not_quantised

UNIT = 16  #: of columns and depth
_E4M3 = (torch.float8_e4m3fn,)


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuBLASLt can't compute this, or None."""
    if reason := why_no_product(call):
        return reason
    if call.weight_scale.numel() != 1 or call.input_scale is None or call.input_scale.numel() != 1:
        return "takes one scale for each matrix"
    return why_not_out(call.out_dtype, *HALVES)


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`; sums keep about 14 bits, which is called fast accumulation."""
    return product(x, weight, weight_scale.reshape(()), bias, input_scale.reshape(()), out_dtype)


def why_no_product(call: Arguments) -> str | None:
    """The reason why neither of PyTorch's products can compute this, or None."""
    if reason := why_not_quantised(call, _E4M3):
        return reason
    if not hasattr(torch, "_scaled_mm"):
        return "this PyTorch has no torch._scaled_mm"
    if call.bias is not None and call.bias.dtype != call.out_dtype:
        return f"bias is {call.bias.dtype}, the result {call.out_dtype}"
    return why_not_multiples(call.weight, UNIT, UNIT)


def product(
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    bias: torch.Tensor | None,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
) -> torch.Tensor:
    """The product, with scales as PyTorch takes them: one, or a column of x's and a row of the weight's."""
    rows, matrix, shift = dense(x).reshape(-1, x.shape[-1]), dense(weight), None if bias is None else dense(bias)
    out = torch._scaled_mm(
        rows,
        matrix.t(),
        scale_a=input_scale,
        scale_b=weight_scale,
        bias=shift,
        out_dtype=out_dtype,
        use_fast_accum=True,
    )
    return out.reshape(*x.shape[:-1], weight.shape[0])
