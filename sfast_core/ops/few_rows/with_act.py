"""The same with an activation behind it, which PyTorch computes in a kernel of its own (H100: 2 us)."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from ...native import load
from . import product

if TYPE_CHECKING:
    from ...target import Target

#: Up to so many rows it takes any weight. With more, one of so many elements: there the activation's kernel outweighs what the product may lose.
ROWS_OF_ANY, MOST_ELEMENTS = 2, 2**22


def why_not(target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> str | None:
    """The reason why the kernel can't compute this, or None."""
    if act not in load.ACTS:
        return f"act {act!r} is not supported"
    if math.prod(x.shape[:-1]) > ROWS_OF_ANY and weight.numel() > MOST_ELEMENTS:
        return f"weight is {list(weight.shape)}, x has more than {ROWS_OF_ANY} rows"
    return product.why_not(target, x, weight, bias)


def launch(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, act: str) -> torch.Tensor:
    """As :func:`.product.launch`."""
    return product.launch(x, weight, bias, act=act)
