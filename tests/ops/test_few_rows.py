"""What the product of few rows takes, and what it leaves to others."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from sfast_core.native import load
from sfast_core.ops.linear import OP, cuda_few_impl
from sfast_core.target import Target
from tests.targets import A100, H100

OLD = Target(torch.device("cuda", 0), "T4", (7, 5), sm_count=40, shared_memory_bytes=65536, triton=True)
META = {"dtype": torch.float16, "device": "meta"}


def x(*shape: int, dtype: torch.dtype = torch.float16) -> torch.Tensor:
    return torch.empty(*(shape or (2, 320)), dtype=dtype, device="meta")


WEIGHT, BIAS = torch.empty(1280, 320, **META), torch.empty(1280, **META)


def reason(target: Target, *args: Any) -> str | None:
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda_few"]
    return impl.why_not(target, *args)


@pytest.mark.parametrize("target", [A100, H100], ids=lambda target: target.name)
@pytest.mark.parametrize("shape", [(320,), (1, 320), (2, 320), (8, 320), (2, 4, 320), (0, 320)], ids=str)
def test_it_takes_few_rows(asked: list[str], target: Target, shape: tuple[int, ...]) -> None:
    residual = torch.empty(*shape[:-1], 1280, **META)
    assert reason(target, x(*shape), WEIGHT, BIAS) is None
    assert reason(target, x(*shape), WEIGHT, None, "none", False, residual) is None
    assert all(reason(target, x(*shape), WEIGHT, BIAS, act) is None for act in ("silu", "relu"))
    assert len(asked) == 4


def test_with_an_activation_a_large_weight_is_for_two_rows(asked: list[str]) -> None:
    assert reason(H100, x(2, 320), torch.empty(20160, 320, **META), None, "silu") is None
    assert reason(H100, x(8, 320), WEIGHT, BIAS, "silu") is None


def test_that_it_was_faster_says_nothing_of_more_rows() -> None:
    assert [impl.carries_over for impl in OP.impls if impl.name == "cuda_few"] == [False] and OP.measured


@pytest.mark.parametrize(
    ("target", "args", "expected"),
    [
        (OLD, (x(), WEIGHT, BIAS), "needs compute capability 8.0, this is 7.5"),
        (H100, (x(9, 320), WEIGHT, BIAS), "x has 9 rows, at most 8 are few"),
        (H100, (x(2, 77, 320), WEIGHT, BIAS), "x has 154 rows, at most 8 are few"),
        (H100, (x(dtype=torch.float32), WEIGHT, BIAS), "x is float32, must be float16 or bfloat16"),
        (H100, (x(2, 640), WEIGHT, BIAS), "x is [2, 640], weight [1280, 320]"),
        (
            H100,
            (x(2, 12), torch.empty(8, 12, **META), None),
            "rows of 12 elements must be a multiple of 8, 16777216 at most",
        ),
        (
            H100,
            (x(2, 0), torch.empty(8, 0, **META), None),
            "rows of 0 elements must be a multiple of 8, 16777216 at most",
        ),
        (H100, (x(), WEIGHT, BIAS[:1]), "bias is [1], must be [1280]"),
        (H100, (x(), WEIGHT, BIAS, "none", False, BIAS), "residual of [1280] is broadcast to [2, 1280]"),
        (H100, (x(), WEIGHT, BIAS, "gelu"), "act 'gelu' is not an epilogue of it"),
        (
            H100,
            (x(3, 320), torch.empty(20160, 320, **META), None, "silu"),
            "weight is [20160, 320], x has more than 2 rows",
        ),
    ],
    ids=lambda value: value.replace(" ", "-") if isinstance(value, str) else "",
)
def test_it_says_what_it_does_not_take(asked: list[str], target: Target, args: tuple[Any, ...], expected: str) -> None:
    assert reason(target, *args) == f"cuda_few: {expected}"
    assert not asked


@pytest.mark.gpu
@pytest.mark.parametrize("act", ["none", "silu", "relu"])
def test_what_is_no_number_stays_none(act: str) -> None:
    device = torch.device("cuda")
    if reason := load.why_not(device):
        pytest.skip(reason)
    rows = torch.tensor([[1.0], [float("nan")]], dtype=torch.float16, device=device).expand(2, 64).contiguous()
    found = cuda_few_impl.launch(rows, torch.ones(24, 64, dtype=torch.float16, device=device), None, act=act)
    assert found.isnan().tolist() == [[False] * 24, [True] * 24]
