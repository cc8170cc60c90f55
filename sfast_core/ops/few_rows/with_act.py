"""The same with an activation behind it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

from ...native import load
from . import product

if TYPE_CHECKING:
    from ...target import Target


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if act not in load.ACTS:
        return f"act {act!r} is not supported"
    return product.why_not(target, x, weight, bias)


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> torch.Tensor:
    """As :func:`.product.launch`."""
    return product.launch(x, weight, bias, act=act)
