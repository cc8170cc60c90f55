"""Cases of ``linear`` with an activation."""

from __future__ import annotations

import torch

from tests.ops.case import Case, Data, Made, Make
from tests.ops.shapes import LINEAR_ACT

ACTS = ("gelu", "gelu_tanh", "quick_gelu", "silu", "relu")


def _make(shape: tuple[int, ...], features: int, act: str, bias: bool = True) -> Make:
    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(*shape)
        # A spread of 3 before the activation: its bends and both tails are reached.
        weight = data.normal(features, shape[-1], std=3.0 / shape[-1] ** 0.5)
        return (x, weight, data.normal(features) if bias else None, act), {}

    return make


def _strided(act: str) -> Make:
    """x that no view makes 2-D."""

    def make(dtype: torch.dtype, device: torch.device) -> Made:
        data = Data(dtype, device)
        x = data.normal(5, 3, 64).transpose(0, 1)
        return (x, data.normal(48, 64, std=0.3), data.normal(48), act), {}

    return make


CASES = [
    *(Case(act, _make((2, 9, 64), 96, act)) for act in ACTS),
    *(Case(f"{act}-odd", _make((3, 5, 33), 71, act)) for act in ACTS),
    *(Case(f"{act}-no-bias", _make((7, 64), 2500, act, bias=False)) for act in ACTS),
    *(Case(f"one-row-{act}", _make((64,), 48, act)) for act in ("relu", "quick_gelu")),
    *(Case(f"{rows}-rows-{act}", _make((rows, 320), 41, act)) for rows in (2, 7) for act in ("silu", "relu", "gelu")),
    *(Case(f"strided-{act}", _strided(act)) for act in ("gelu_tanh", "quick_gelu")),
    *(Case(f"empty-{act}", _make((0, 7, 64), 48, act)) for act in ("gelu", "quick_gelu")),
]

GPU_CASES = [
    *(
        Case(f"{model}-{'x'.join(map(str, s.size))}-{s.features}-{s.act}", _make(s.size, s.features, s.act))
        for model, shapes in LINEAR_ACT.items()
        for s in shapes
    ),
    Case("past-2-31-elements", _make((2**16 + 1, 16), 2**15, "quick_gelu"), slow=True),
]
