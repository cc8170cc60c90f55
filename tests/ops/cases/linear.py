"""Cases of ``linear``: with each of its epilogues, and those with a residual without it."""

from __future__ import annotations

from dataclasses import replace

import torch

from tests.ops.case import Case, Made
from tests.ops.cases.epilogues import act, gate, residual


def _plain(case: Case) -> Case:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        args, kwargs = case.make(dtype, device)
        return args[:3], kwargs

    return replace(case, make=make)


def _named(cases: list[Case], kind: str) -> list[Case]:
    return [replace(case, id=f"{kind}-{case.id}") for case in cases]


CASES = [
    *map(_plain, residual.CASES),
    *_named(residual.CASES, "residual"),
    *_named(act.CASES, "act"),
    *_named(gate.CASES, "gate"),
]

GPU_CASES = [
    *map(_plain, residual.GPU_CASES),
    *_named(residual.GPU_CASES, "residual"),
    *_named(act.GPU_CASES, "act"),
    *_named(gate.GPU_CASES, "gate"),
]
