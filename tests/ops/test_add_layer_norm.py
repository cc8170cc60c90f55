"""What the generic op test can't tell apart: whether ``add_layer_norm`` normalises the rounded sum, which is the one it
returns.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from sfast_core.native import load
from sfast_core.ops.add_layer_norm import OP, add_layer_norm
from tests.targets import A100

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")


def _triton(*args: Any) -> tuple[torch.Tensor, torch.Tensor]:
    impl = pytest.importorskip("sfast_core.ops.add_layer_norm.triton_impl", reason="needs Triton")
    result: tuple[torch.Tensor, torch.Tensor] = impl.launch(*args)
    return result


@pytest.mark.parametrize("function", [add_layer_norm, _triton])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16], ids=str)
def test_normalises_the_rounded_sum(
    function: Callable[..., tuple[torch.Tensor, torch.Tensor]], dtype: torch.dtype
) -> None:
    """Far from zero the sum's rounding is as large as its deviations, so normalising it unrounded would give something
    else.
    """
    generator = torch.Generator().manual_seed(0)
    offset = 2.0 ** (9 if dtype == torch.float16 else 6)  # between two values of dtype there: a half
    x = (torch.randn(4, 256, generator=generator) * 0.5 + offset).to(DEVICE, dtype)
    residual = (torch.randn(4, 256, generator=generator) * 0.3).to(DEVICE, dtype)
    s, n = function(x, residual, None, None, 1e-5)
    truth = _normalised(s)
    unrounded = _normalised(x.double() + residual.double())
    assert torch.linalg.vector_norm(n.double() - truth) < 0.01 * torch.linalg.vector_norm(truth)
    assert torch.linalg.vector_norm(unrounded - truth) > 0.1 * torch.linalg.vector_norm(truth)


def _normalised(s: torch.Tensor) -> torch.Tensor:
    return torch.nn.functional.layer_norm(s.double(), s.shape[-1:], eps=1e-5)


@pytest.mark.parametrize("function", [add_layer_norm, _triton])
def test_without_residual_the_sum_is_x(function: Callable[..., tuple[torch.Tensor, torch.Tensor]]) -> None:
    """No copy is made of x."""
    x = torch.randn(3, 64, generator=torch.Generator().manual_seed(0)).to(DEVICE)
    s, _ = function(x, None, None, None, 1e-5)
    assert s is x


def _cuda_reason(
    monkeypatch: pytest.MonkeyPatch,
    channels: int,
    dtype: torch.dtype = torch.float16,
    affine: torch.dtype | None = None,
) -> str | None:
    monkeypatch.setattr(load, "why_not", lambda *_: None)
    (impl,) = [impl for impl in OP.impls if impl.name == "cuda"]
    x = torch.empty(2, 7, channels, dtype=dtype, device="meta")
    weight = torch.empty(channels, dtype=affine or dtype, device="meta")
    return impl.why_not(A100, x, x, weight, weight, 1e-5)


@pytest.mark.parametrize("channels", [8, 24, 320, 640, 768, 1024, 1280, 1536, 2048, 3072, 4096, 8192, 20480])
def test_the_cuda_kernel_takes_rows_of_one_to_five_packs_for_each_thread(
    monkeypatch: pytest.MonkeyPatch, channels: int
) -> None:
    assert _cuda_reason(monkeypatch, channels) is None


@pytest.mark.parametrize("channels", [4, 33, 316, 8 * 7, 8 * 1024 * 4, 8 * 1024 * 5])
def test_the_cuda_kernel_leaves_other_rows_to_triton(monkeypatch: pytest.MonkeyPatch, channels: int) -> None:
    assert str(_cuda_reason(monkeypatch, channels)).startswith(
        f"cuda: rows of {channels} channels are not 1 to 5 times a power of two"
    )


def test_the_cuda_kernel_wants_one_dtype(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _cuda_reason(monkeypatch, 320, affine=torch.float32) == "cuda: weight is float32, x is float16"
    assert _cuda_reason(monkeypatch, 4, torch.float32) is None
