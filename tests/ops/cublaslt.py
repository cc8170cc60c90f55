"""What tests of cuBLASLt share."""

from __future__ import annotations

import torch

from sfast_core.ops.linear import OP
from sfast_core.target import Target

GPU = Target(torch.device("cuda", 0), "everything", (9, 0))
IMPLS = [impl for impl in OP.impls if impl.name.startswith("cublaslt")]


def why_not(
    target: Target, x: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, residual: torch.Tensor
) -> str | None:
    return IMPLS[0].why_not(target, x, weight, bias, "none", False, residual)
