"""The convolution with its bias, and ReLU, in one of cuDNN's ready-made kernels: the result is written once."""

from __future__ import annotations

import math

import torch

from ...target import Target
from ..packs import INNERMOST
from ..spec import Arguments
from .cudnn_plans import Geometry, as_operand, plans, why_no_library
from .reference import IntOrPair, each, memory_format_of


def why_not(target: Target, call: Arguments) -> str | None:
    """The reason why cuDNN can't compute this, or None."""
    if (
        call.bias is None
        or call.residual is not None
        or call.channel_add is not None
        or call.act not in ("none", "relu")
    ):
        return "cuDNN has ready-made kernels for a bias and ReLU alone"
    if call.x.dim() not in (4, 5) or call.x.numel() == 0 or call.weight.numel() == 0:
        return f"x is {list(call.x.shape)}, must be 4-D or 5-D and not empty"
    out = _geometry(call.x, call.weight, call.stride, call.padding, call.dilation, call.act).out
    if max(call.x.numel(), math.prod(out)) >= 2**31:
        return f"x of {list(call.x.shape)} or the result of {list(out)} has 2^31 elements or more"
    return why_no_library()


def launch(
    x,
    weight,
    bias,
    stride=1,
    padding=0,
    dilation=1,
    groups=1,
    residual=None,
    act="none",
    channel_add=None,
    *,
    rank: int = 0,
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once.

    By the plan that cuDNN's heuristic puts at ``rank``: the first is not always the fastest.
    """
    geometry = _geometry(x, weight, stride, padding, dilation, act)
    out = torch.empty(geometry.out, dtype=x.dtype, device=x.device, memory_format=INNERMOST[x.dim()])
    tensors = {"x": x, "weight": weight, "bias": bias}
    operands = {name: as_operand(tensor) for name, tensor in tensors.items() if tensor is not None}
    plans().run(geometry, rank, {**operands, "out": out})
    return out.contiguous(memory_format=memory_format_of(x))


def _geometry(
    x: torch.Tensor,
    weight: torch.Tensor,
    stride: IntOrPair,
    padding: IntOrPair,
    dilation: IntOrPair,
    act: str,
) -> Geometry:
    """What a plan depends on. The groups follow from the channels of x and weight."""
    return Geometry(
        device=x.device.index if x.device.index is not None else 0,
        dtype=x.dtype,
        x=tuple(x.shape),
        weight=tuple(weight.shape),
        stride=each(stride, x.dim() - 2),
        padding=each(padding, x.dim() - 2),
        dilation=each(dilation, x.dim() - 2),
        relu=act == "relu",
    )
