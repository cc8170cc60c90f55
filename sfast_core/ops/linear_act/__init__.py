"""A linear layer and the activation behind it."""

from __future__ import annotations

from ..few_rows import IMPL_WITH_ACT
from ..spec import Impl, Op
from .reference import linear_act

__all__ = ["OP", "linear_act"]

OP = Op(
    name="linear_act",
    reference=linear_act,
    impls=(
        IMPL_WITH_ACT,
        Impl("cublaslt", ".cublaslt_impl", __package__),
        Impl("triton", ".triton_impl", __package__),
    ),
)
