"""A gated product of int8 or e4m3 by the CUDA extension's persistent kernel, on Hopper: a thread has a column of the value and of its gate.

The kernel is in ``csrc/scaled_linear.cu``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ..scaled_linear import cuda_impl
from ..scaled_linear.cuda_impl import Cut, Gate
from ..spec import ranked
from .reference import ACTS

if TYPE_CHECKING:
    from ...target import Target

CUTS = (Cut(256, 2, 4), Cut(256, 2, 16))  #: half of a tile's columns are the gate's


def why_not(
    target: Target,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate_bias: torch.Tensor | None,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
    act: str,
) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    for own in ((weight, weight_scale, bias), (gate_weight, gate_scale, gate_bias)):
        if reason := cuda_impl.why_not(target, x, *own, input_scale, out_dtype):
            return reason
    if weight.shape != gate_weight.shape or weight_scale.numel() != gate_scale.numel():
        return f"gate_weight is {list(gate_weight.shape)} with {gate_scale.numel()} scales, weight {list(weight.shape)} with {weight_scale.numel()}"
    if (bias is None) != (gate_bias is None) or (bias is not None and gate_bias is not None and bias.dtype != gate_bias.dtype):
        return "bias and gate_bias are not of one dtype"
    return None if act in ACTS else f'act is "{act}", must be one of {", ".join(ACTS)}'


def launch_rank(
    rank: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    weight_scale: torch.Tensor,
    gate_weight: torch.Tensor,
    gate_scale: torch.Tensor,
    bias: torch.Tensor | None,
    gate_bias: torch.Tensor | None,
    input_scale: torch.Tensor,
    out_dtype: torch.dtype,
    act: str,
) -> torch.Tensor:
    """As :func:`.reference.scaled_glu`, cut as :data:`CUTS` says at ``rank``; sums of e4m3 keep about 14 bits.

    Raises:
        ExtensionUnavailable: the extension isn't built.
        ExtensionError: CUDA refused the kernel.
    """
    gate = Gate(gate_weight, gate_scale, gate_bias)
    return cuda_impl.launch_cut(CUTS[rank], x, weight, weight_scale, bias, input_scale, out_dtype, act, gate)


launch = ranked(launch_rank, 0, "launch")
launch_second = ranked(launch_rank, 1, "launch_second")
