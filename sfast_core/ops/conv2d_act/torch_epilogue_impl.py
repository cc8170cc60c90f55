"""PyTorch's convolution without bias, and one pass over its result for all that follows.

PyTorch adds a bias after cuDNN's convolution in a pass of its own, and so do the sum and the activation behind it. Here
they are one pass: bytes moved are twice the result's, three times with a residual.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from ...target import Target
from ..packs import INNERMOST
from ..spec import Arguments
from ..triton_launch import launcher
from .constraints import why_not_channel_add
from .epilogue import epilogue
from .reference import ACTS, IntOrPair, each, memory_format_of
from .triton_kernels import epilogue_kernel

BLOCK_PIXELS = 16
BLOCK_CHANNELS = 128  # with 4 warps: two 16-byte loads of each operand in flight per thread


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why this can't be computed so, or None."""
    if call.x.dim() not in (4, 5):
        return f"x is {call.x.dim()}-D, must be 4-D or 5-D"
    if call.weight.shape[0] > BLOCK_CHANNELS * 65535:
        return f"{call.weight.shape[0]} channels are too many"
    if reason := why_not_channel_add(call.channel_add, call.x.shape[0], call.weight.shape[0]):
        return reason
    return None if call.act in ACTS else f"act {call.act!r} is not supported"


def launch(
    x, weight, bias, stride=1, padding=0, dilation=1, groups=1, residual=None, act="none", channel_add=None
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`; the convolution is rounded to x's dtype, the rest added in float32."""
    image, kernel = (tensor.contiguous(memory_format=INNERMOST[x.dim()]) for tensor in (x, weight))
    out = _convolve(image, kernel, stride, padding, dilation, groups).contiguous(memory_format=INNERMOST[x.dim()])
    if out.numel() > 0 and (act != "none" or any(tensor is not None for tensor in (bias, channel_add, residual))):
        add_in_place(out, bias, channel_add, residual, act)
    return out.contiguous(memory_format=memory_format_of(x))


def _convolve(
    x: torch.Tensor, weight: torch.Tensor, stride: IntOrPair, padding: IntOrPair, dilation: IntOrPair, groups: int
) -> torch.Tensor:
    """The convolution, by an algorithm that gives the same bits at every run, unlike ``F.conv2d`` by itself."""
    if isinstance(padding, str):
        return (F.conv3d if x.dim() == 5 else F.conv2d)(x, weight, None, stride, padding, dilation, groups)
    count = x.dim() - 2
    geometry = (each(stride, count), each(padding, count), each(dilation, count), False, (0,) * count, groups)
    cudnn = torch.backends.cudnn
    # some versions of PyTorch take another library's for videos of bfloat16
    if count == 3 and x.is_cuda and cudnn.enabled and cudnn.is_acceptable(x):
        return torch.cudnn_convolution(
            x, weight, geometry[1], geometry[0], geometry[2], groups, False, True, cudnn.allow_tf32
        )
    return torch.ops.aten._convolution(x, weight, None, *geometry, False, True, cudnn.enabled, cudnn.allow_tf32)


def add_in_place(
    out: torch.Tensor,
    bias: torch.Tensor | None,
    channel_add: torch.Tensor | None,
    residual: torch.Tensor | None,
    act: str,
) -> None:
    """``out = act(out + bias + channel_add + residual)``, out with its channels innermost and not empty."""
    ending = epilogue(out, bias, channel_add, residual, act)
    pixels = out.numel() // out.shape[1]
    launcher(epilogue_kernel, (-(-pixels // BLOCK_PIXELS), -(-out.shape[1] // BLOCK_CHANNELS)))(
        out,
        *ending.arguments,
        **ending.constants,
        BLOCK_PIXELS=BLOCK_PIXELS,
        BLOCK_CHANNELS=BLOCK_CHANNELS,
        num_warps=4,
        enable_fp_fusion=True,
    )
