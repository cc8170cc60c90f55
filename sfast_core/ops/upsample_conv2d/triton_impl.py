"""Four of PyTorch's convolutions, one for each phase, and one pass that puts their results together and adds the bias.

PyTorch pads both sides alike, so each result has a row and a column more than its phase: 1/H + 1/W more work, and the pass leaves them out.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
import torch.nn.functional as F

from ..constraints import why_no_triton, why_not_dtypes
from ..conv2d_act.reference import memory_format_of
from .constraints import why_not_shapes
from .phases import BLOCK_CHANNELS, PHASES, empty_image, interleave, phase_weights

if TYPE_CHECKING:
    from ...target import Target


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> str | None:
    """The reason why this can't be computed so, or None."""
    if reason := why_no_triton(target) or why_not_dtypes(x=x, weight=weight, bias=bias) or why_not_shapes(x, weight, bias):
        return reason
    channels = max(weight.shape[:2])
    return f"{channels} channels are too many" if channels > BLOCK_CHANNELS * 65535 else None


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    """As :func:`.reference.upsample_conv2d`; sums of taps and the convolutions' results are rounded to x's dtype, the bias comes last."""
    out = empty_image(x, weight.shape[0], 2)
    if out.numel() > 0:
        height, width = x.shape[2:]
        image = x.contiguous(memory_format=torch.channels_last)
        with torch.cuda.device_of(out):
            weights = phase_weights(weight)
            results = []
            for i, j in PHASES:
                padded = F.conv2d(image, weights[i, j], None, padding=1).contiguous(memory_format=torch.channels_last)
                results.append(padded[:, :, i : i + height, j : j + width])
            interleave(results, bias, out)
    return out.contiguous(memory_format=memory_format_of(x))
