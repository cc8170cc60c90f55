"""What the kernel of sinusoids takes, and that timesteps in main memory stay there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.ops.sinusoids import OP, sinusoids
from sfast_core.target import Target
from tests.targets import A100

(IMPL,) = OP.impls


def meta(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.empty(shape, dtype=dtype, device="meta")


def reason(
    x: torch.Tensor, frequencies: torch.Tensor, dtype: torch.dtype = torch.float16, target: Target = A100
) -> str | None:
    return IMPL.why_not(target, x, frequencies, False, dtype)


@pytest.mark.parametrize("kind", [torch.int64, torch.float16, torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("frequencies", [(1, 160), (160,), (1, 0)], ids=str)
def test_it_takes_numbers_below_one_another(asked: list[str], kind: torch.dtype, frequencies: tuple[int, ...]) -> None:
    assert reason(meta(2, 1, dtype=kind), meta(*frequencies)) is None and len(asked) == 1


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((meta(2, 1), meta()), "x is [2, 1], frequencies [], must be [N, 1] and [1, H]"),
        ((meta(2, 1), meta(1, 1, 8)), "x is [2, 1], frequencies [1, 1, 8]"),
        ((meta(2, 1), meta(2, 8)), "x is [2, 1], frequencies [2, 8]"),
        ((meta(2, 8), meta(1, 8)), "x is [2, 8], frequencies [1, 8]"),
        ((meta(2), meta(8)), "x is [2], frequencies [8]"),
        ((meta(2, 1, dtype=torch.float64), meta(8)), "x is float64"),
        ((meta(2, 1, dtype=torch.int32), meta(8)), "x is int32"),
        ((meta(2, 1), meta(8, dtype=torch.float16)), "frequencies are torch.float16"),
        ((meta(2, 1), meta(8), torch.float64), "frequencies are torch.float32 and the result torch.float64"),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(asked: list[str], arguments: tuple[Any, ...], expected: str) -> None:
    assert (reason(*arguments) or "").startswith(f"cuda: {expected}") and not asked


def test_timesteps_in_main_memory_stay_there() -> None:
    x, frequencies = torch.tensor([[999], [1]]), torch.logspace(0, -4, 8)
    assert torch.equal(IMPL.launch(x, frequencies, True, torch.float16), sinusoids(x, frequencies, True, torch.float16))
