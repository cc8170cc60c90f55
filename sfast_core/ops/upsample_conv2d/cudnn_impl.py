"""The doubled image as it is, and cuDNN's convolution with the bias in its epilogue.

For small images, where sums of taps are more to move than they spare, and where there is neither the CUDA extension nor
Triton.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...target import Target
from ..conv2d_act import cudnn_impl as convolution
from ..conv2d_act.reference import conv2d_act, memory_format_of
from ..spec import Arguments
from .constraints import why_not_shapes


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuDNN can't compute this, or None."""
    if reason := why_not_shapes(call.x, call.weight, call.bias):
        return reason
    doubled = torch.empty(
        (*call.x.shape[:2], 2 * call.x.shape[2], 2 * call.x.shape[3]), dtype=call.x.dtype, device="meta"
    )
    return convolution.why_not(target, Arguments.of(conv2d_act, doubled, call.weight, call.bias, 1, 1))


def launch(x, weight, bias) -> torch.Tensor:
    """As :func:`.reference.upsample_conv2d`, rounded once.

    Raises:
        RuntimeError: cuDNN has no plan for it.
    """
    doubled = F.interpolate(x.contiguous(memory_format=torch.channels_last), scale_factor=2.0, mode="nearest")
    return convolution.launch(doubled, weight, bias, 1, 1).contiguous(memory_format=memory_format_of(x))
