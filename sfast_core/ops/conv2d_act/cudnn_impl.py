"""The convolution with its epilogue in one of cuDNN's kernels: the result is written once, and nothing else touches it."""

from __future__ import annotations

import importlib.util
import math
from typing import TYPE_CHECKING

import torch

from ..constraints import why_no_cuda
from .cudnn_plans import Geometry, library, plans
from .reference import ACTS, IntOrPair, memory_format_of, pair

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
    if reason := why_no_cuda(target, (8, 0)):
        return reason
    if x.dtype not in (torch.float16, torch.bfloat16):
        return f"x is {str(x.dtype).removeprefix('torch.')}, must be float16 or bfloat16"
    for name, tensor in (("weight", weight), ("bias", bias), ("residual", residual), ("channel_add", channel_add)):
        if tensor is not None and tensor.dtype != x.dtype:
            return f"{name} is {str(tensor.dtype).removeprefix('torch.')}, x is {str(x.dtype).removeprefix('torch.')}"
    if act not in ACTS:
        return f"act {act!r} is not supported"
    if x.dim() != 4 or x.numel() == 0 or weight.numel() == 0:
        return f"x is {list(x.shape)}, must be 4-D and not empty"
    if act == "none" and bias is None and residual is None and channel_add is None:
        return "there is nothing to fuse"
    out = _geometry(x, weight, bias, stride, padding, dilation, residual, act, channel_add).out
    if max(x.numel(), math.prod(out)) >= 2**31:
        return f"x of {list(x.shape)} or the result of {list(out)} has 2^31 elements or more"
    if residual is not None and tuple(residual.shape) != out:
        return f"residual is {list(residual.shape)}, the result {list(out)}"
    if channel_add is not None and tuple(channel_add.shape) not in ((1, out[1]), (out[0], out[1])):
        return f"channel_add is {list(channel_add.shape)}, must be [1 or {out[0]}, {out[1]}]"
    return _why_no_library()


def _why_no_library() -> str | None:
    if importlib.util.find_spec("cudnn") is None:
        return "needs nvidia-cudnn-frontend"
    try:
        cudnn = library()
        if not hasattr(cudnn, "create_kernel_cache"):
            return f"nvidia-cudnn-frontend {getattr(cudnn, '__version__', '?')} is too old"
        if cudnn.backend_version() < 90000:
            return f"needs cuDNN 9, this is {cudnn.backend_version()}"
    except Exception as error:  # noqa: BLE001 (a library that can't be loaded is no error here)
        return f"nvidia-cudnn-frontend can't be loaded: {(str(error) or type(error).__name__).splitlines()[0][:120]}"
    return None


def launch(
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
    """As :func:`.reference.conv2d_act`, all in float32 until the result is rounded, once."""
    return launch_plan(0, x, weight, bias, stride, padding, dilation, residual, act, channel_add)


def launch_plan(
    rank: int,
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair,
    padding: IntOrPair,
    dilation: IntOrPair,
    residual: torch.Tensor | None,
    act: str,
    channel_add: torch.Tensor | None,
) -> torch.Tensor:
    """:func:`launch` by the plan that cuDNN's heuristic puts at ``rank``."""
    geometry = _geometry(x, weight, bias, stride, padding, dilation, residual, act, channel_add)
    out = torch.empty(geometry.out, dtype=x.dtype, device=x.device, memory_format=torch.channels_last)
    tensors = {"x": x, "weight": weight, "residual": residual, "bias": bias, "channel_add": channel_add}
    operands = {name: _operand(tensor) for name, tensor in tensors.items() if tensor is not None}
    plans().run(geometry, rank, {**operands, "out": out})
    return out.contiguous(memory_format=memory_format_of(x))


def _geometry(
    x: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    stride: IntOrPair,
    padding: IntOrPair,
    dilation: IntOrPair,
    residual: torch.Tensor | None,
    act: str,
    channel_add: torch.Tensor | None,
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
        bias=bias is not None,
        channel_rows=0 if channel_add is None else channel_add.shape[0],
        residual=residual is not None,
        act=act,
    )


def _operand(tensor: torch.Tensor) -> torch.Tensor:
    """``tensor`` dense in NHWC and beginning on 16 bytes, copied only where it is not."""
    dense = tensor.contiguous(memory_format=torch.channels_last) if tensor.dim() == 4 else tensor.contiguous()
    return dense if dense.data_ptr() % 16 == 0 else dense.clone()
