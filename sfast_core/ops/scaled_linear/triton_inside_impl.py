"""A product of 16 bits with a weight of 8 that is dequantised inside it: the weight is read as it is stored.

For few rows that is all the time it takes.
"""

from __future__ import annotations

import torch

from ...target import Target
from ..spec import Arguments
from ..triton_operand import operand
from .constraints import why_not_dequantised
from .triton_impl import launch_as, why_no_kernel


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    return why_no_kernel(target, call.weight) or why_not_dequantised(call)


def launch(x, weight, weight_scale, bias, input_scale, out_dtype, rotate=0) -> torch.Tensor:
    """As :func:`.reference.scaled_linear`, with the weight's scale in float32 behind the sum."""
    return launch_as(operand(x), x, weight, weight_scale, bias, None, out_dtype)
