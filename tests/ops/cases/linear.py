"""Cases of ``linear``: those of ``linear_add`` without the residual."""

from __future__ import annotations

from typing import Any

import torch

from tests.ops.case import Case
from tests.ops.cases import linear_add


def _without_residual(case: Case) -> Case:
    def make(dtype: torch.dtype, device: torch.device) -> tuple[tuple[Any, ...], dict[str, Any]]:
        (x, weight, bias, _), kwargs = case.make(dtype, device)
        return (x, weight, bias), kwargs

    return Case(case.id, make, case.slow)


CASES = [_without_residual(case) for case in linear_add.CASES]

GPU_CASES = [_without_residual(case) for case in linear_add.GPU_CASES]
