"""A linear layer and the residual that is added to its result."""

from __future__ import annotations

import torch

from ..spec import Impl, Op
from .reference import linear_add

__all__ = ["OP", "linear_add"]


def _family(x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor) -> tuple[str, int]:
    return f"{x.dtype} {tuple(weight.shape)} {bias is not None}", x.numel()


OP = Op(
    name="linear_add",
    reference=linear_add,
    impls=(
        Impl("cublaslt", ".cublaslt_impl", __package__),
        Impl("cublaslt_2", ".cublaslt_impl", __package__, "launch_second"),
    ),
    measured=True,
    family=_family,
)
