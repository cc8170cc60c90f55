"""A linear layer with the gate of GEGLU behind it: the feed-forward layer of a transformer block, first half."""

from __future__ import annotations

import torch

from ..spec import Impl, Op
from .reference import linear_geglu

__all__ = ["OP", "linear_geglu"]


def _family(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, approximate: str = "none") -> tuple[str, int]:
    return f"{x.dtype} {tuple(weight.shape)} {bias is not None} {approximate}", x.numel()


def _above_256_rows(x: torch.Tensor, *_: object) -> bool:
    return x.numel() > 256 * x.shape[-1]


OP = Op(
    name="linear_geglu",
    reference=linear_geglu,
    impls=(
        Impl("triton_tma", ".triton_tma_impl", __package__),
        # With more rows slower at 50 of 50 calls of SD1.5 and SDXL (H100), and another kernel to compile.
        Impl("triton_gate", ".triton_gate_impl", __package__, behind=("triton_tma",), behind_if=_above_256_rows),
    ),
    measured=True,
    family=_family,
)
