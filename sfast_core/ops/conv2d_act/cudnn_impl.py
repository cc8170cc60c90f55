"""The convolution with its bias, and ReLU, in one of cuDNN's ready-made kernels: the result is written once."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...numerics import CUDNN
from ..constraints import why_no_cuda, why_not_half, why_switched_off
from ..spec import ranked
from .cudnn_plans import Geometry, as_operand, plans, why_no_library
from .reference import IntOrPair, memory_format_of, pair

if TYPE_CHECKING:
    from ...target import Target


def why_not(
    target: Target,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    residual: torch.Tensor | None = None,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
) -> str | None:
    """The reason why cuDNN can't compute this, or None."""
    if reason := why_no_cuda(target, (8, 0)) or why_switched_off(target, CUDNN) or why_not_half(x):
        return reason
    if bias is None or residual is not None or channel_add is not None or act not in ("none", "relu"):
        return "cuDNN has ready-made kernels for a bias and ReLU alone"
    if reason := why_not_half(x, weight=weight, bias=bias):
        return reason
    if x.dim() != 4 or x.numel() == 0 or weight.numel() == 0:
        return f"x is {list(x.shape)}, must be 4-D and not empty"
    out = _geometry(x, weight, stride, padding, dilation, act).out
    if max(x.numel(), math.prod(out)) >= 2**31:
        return f"x of {list(x.shape)} or the result of {list(out)} has 2^31 elements or more"
    return why_no_library()


def launch_plan(
    rank: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair = 1,
    padding: IntOrPair = 0,
    dilation: IntOrPair = 1,
    groups: int = 1,
    residual: torch.Tensor | None = None,
    act: str = "none",
    channel_add: torch.Tensor | None = None,
) -> torch.Tensor:
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once.

    By the plan that cuDNN's heuristic puts at ``rank``: the first is not always the fastest.
    """
    geometry = _geometry(x, weight, stride, padding, dilation, act)
    out = torch.empty(geometry.out, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    tensors = {"x": x, "weight": weight, "bias": bias}
    operands = {name: as_operand(tensor) for name, tensor in tensors.items() if tensor is not None}
    plans().run(geometry, rank, {**operands, "out": out})
    return out.contiguous(memory_format=memory_format_of(x))


launch = ranked(launch_plan, 0, "launch")
launch_second = ranked(launch_plan, 1, "launch_second")
launch_third = ranked(launch_plan, 2, "launch_third")


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
        stride=pair(stride),
        padding=pair(padding),
        dilation=pair(dilation),
        relu=act == "relu",
    )
