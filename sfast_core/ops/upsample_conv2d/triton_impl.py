"""Doubling and convolving as one transposed convolution of the small image: 4/9 of the products, and no doubled image.

Each row of the doubled image is a row of the small one: row 2y of the result takes the rows y - 1 (weight w0) and y (w1
+ w2), row 2y + 1 the rows y (w0 + w1) and y + 1 (w2), columns alike. That is a transposed convolution of stride 2 and
padding 1 with the 4x4 weight ``[w2, w1 + w2, w0 + w1, w0]``. cuDNN runs it in one kernel (H100, fp16, us: 2x1280x32x32
177, the four phases as 2x2 convolutions 264, doubling and convolving 397; 1x512x256x256 808, 989 and 2413).

The 4x4 weight is computed at every call: whoever writes to the weight in place must reach it.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...target import Target
from ..conv2d_act.reference import memory_format_of
from ..conv2d_act.torch_epilogue_impl import add_in_place
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_not_shapes, why_not_weight
from .triton_kernels import transposed_weight_kernel

BLOCK_OUTPUTS = 64  # 128 bytes of a row that is written
BLOCK_CHANNELS = 32
MAX_CHANNELS = 32 * 65535


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why this can't be computed so, or None."""
    if reason := why_not_shapes(call.x, call.weight, call.bias):
        return reason
    channels = max(call.weight.shape[:2])
    if channels > MAX_CHANNELS:
        return f"{channels} channels are too many"
    return why_not_weight(call.x, call.weight)


def launch(x, weight, bias) -> torch.Tensor:
    """As :func:`.reference.upsample_conv2d`; taps' sums and the convolution are rounded, then the bias is added."""
    image = x.contiguous(memory_format=torch.channels_last)
    if x.numel() == 0:
        out = x.new_empty((x.shape[0], weight.shape[0], 2 * x.shape[2], 2 * x.shape[3]))
    else:
        out = _convolve(image, transposed_weight(weight)).contiguous(memory_format=torch.channels_last)
    if out.numel() > 0 and bias is not None:
        add_in_place(out, bias, None, None, "none")
    return out.contiguous(memory_format=memory_format_of(x))


def transposed_weight(weight: torch.Tensor) -> torch.Tensor:
    """The 4x4 weight, computed in float32 and rounded once.

    Args:
        weight: [O, C, 3, 3], not empty.

    Returns:
        [C, O, 4, 4] in weight's dtype, channels_last, as ``F.conv_transpose2d`` takes it.
    """
    weight = weight.contiguous(memory_format=torch.channels_last)
    outputs, channels = weight.shape[:2]
    transposed = torch.empty(
        (channels, outputs, 4, 4), dtype=weight.dtype, device=weight.device, memory_format=torch.channels_last
    )
    launcher(transposed_weight_kernel, (-(-outputs // BLOCK_OUTPUTS), -(-channels // BLOCK_CHANNELS)))(
        weight,
        transposed,
        outputs,
        channels,
        BLOCK_OUTPUTS=BLOCK_OUTPUTS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        num_warps=4,
    )
    return transposed


def _convolve(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """The transposed convolution; on CUDA by an algorithm that gives the same bits at every run."""
    if x.device.type != "cuda":
        return F.conv_transpose2d(x, weight, stride=2, padding=1)
    allow_tf32 = torch.backends.cudnn.allow_tf32
    return torch.ops.aten.cudnn_convolution_transpose(
        x, weight, (1, 1), (0, 0), (2, 2), (1, 1), 1, False, True, allow_tf32
    )
