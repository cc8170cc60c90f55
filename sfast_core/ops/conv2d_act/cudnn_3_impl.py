"""As :mod:`.cudnn_impl`, by the plan that cuDNN's heuristic puts third: the first is not always the fastest."""

from __future__ import annotations

import torch

from .cudnn_impl import launch_plan, why_not
from .reference import IntOrPair

__all__ = ["launch", "why_not"]


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
    """As :func:`.cudnn_impl.launch`."""
    return launch_plan(2, x, weight, bias, stride, padding, dilation, act)
