"""A gated product of int8 or e4m3 by the CUDA extension, on Hopper: a thread has a column of the value and its gate.

The kernel is in ``csrc/scaled_linear.cu``.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..scaled_linear import cuda_impl, scaled_linear
from ..scaled_linear.cuda_impl import Gate, Tiling
from ..spec import Arguments
from .reference import ACTS

TILINGS = (Tiling(256, 2, 4), Tiling(256, 2, 16))  #: half of a tile's columns are the gate's


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    for own in ((call.weight, call.weight_scale, call.bias), (call.gate_weight, call.gate_scale, call.gate_bias)):
        if reason := cuda_impl.why_not(
            target, Arguments.of(scaled_linear, call.x, *own, call.input_scale, call.out_dtype)
        ):
            return reason
    if call.weight.shape != call.gate_weight.shape or call.weight_scale.numel() != call.gate_scale.numel():
        return (
            f"gate_weight is {list(call.gate_weight.shape)} with {call.gate_scale.numel()} scales, weight"
            f" {list(call.weight.shape)} with {call.weight_scale.numel()}"
        )
    if (call.bias is None) != (call.gate_bias is None) or (
        call.bias is not None and call.gate_bias is not None and call.bias.dtype != call.gate_bias.dtype
    ):
        return "bias and gate_bias are not of one dtype"
    return None if call.act in ACTS else f'act is "{call.act}", must be one of {", ".join(ACTS)}'


def launch(
    x, weight, weight_scale, gate_weight, gate_scale, bias, gate_bias, input_scale, out_dtype, act, *, rank: int = 0
) -> torch.Tensor:
    """As :func:`.reference.scaled_glu`, cut as :data:`TILINGS` says at ``rank``; sums of e4m3 keep about 14 bits."""
    gate = Gate(gate_weight, gate_scale, gate_bias)
    return cuda_impl.launch_tiled(TILINGS[rank], x, weight, weight_scale, bias, input_scale, out_dtype, act, gate)
