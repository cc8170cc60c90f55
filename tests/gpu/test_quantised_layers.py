"""Quantised layers as libraries write them, on a GPU: replayed from a graph, by the kernels that are there for them,
and right.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile

pytestmark = pytest.mark.gpu
BF16, STORED = torch.bfloat16, torch.float8_e4m3fn


class Layer(nn.Module):
    """Numbers of 8 bits, a scale for each row, and a way to multiply by them."""

    def __init__(
        self, inner: int, outer: int, numbers: torch.dtype, product: Callable[[Any, torch.Tensor], torch.Tensor]
    ) -> None:
        super().__init__()
        weight = torch.randn(outer, inner) / inner**0.5
        scale = weight.abs().amax(1, keepdim=True) / (127 if numbers is torch.int8 else 448)
        q = (weight / scale).round().to(numbers) if numbers is torch.int8 else (weight / scale).to(numbers)
        self.q, self.scale = nn.Parameter(q, requires_grad=False), nn.Parameter(scale, requires_grad=False)
        self.bias = nn.Parameter(torch.randn(outer, dtype=BF16), requires_grad=False)
        self._product = product

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._product(self, x)


def _int8(layer: Any, x: torch.Tensor) -> torch.Tensor:
    y = torch.mm(x.reshape(-1, x.shape[-1]), layer.q.t().to(x.dtype)) * layer.scale.to(x.dtype).flatten()
    return y.reshape(*x.shape[:-1], -1) + layer.bias  # type: ignore[no-any-return]


def _float8(layer: Any, x: torch.Tensor) -> torch.Tensor:
    return torch.matmul(x, (layer.q.t().float() * layer.scale.t()).to(x.dtype)) + layer.bias  # type: ignore[no-any-return]


def _dynamic(layer: Any, x: torch.Tensor) -> torch.Tensor:
    scale = (x.abs().amax(-1, keepdim=True).float() / 127.5).clamp(min=1e-7)
    q = (x * (1 / scale)).round().clamp(-128, 127).to(torch.int8)
    y = (torch._int_mm(q.reshape(-1, x.shape[-1]), layer.q.t()).float() * scale.reshape(-1, 1)).to(
        x.dtype
    ) * layer.scale.flatten()
    return (y.reshape(*x.shape[:-1], -1) + layer.bias).to(x.dtype)  # type: ignore[no-any-return]


class Casting(nn.Linear):
    """As diffusers' layerwise casting."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.to(dtype=x.dtype)
        out = super().forward(x)
        self.to(dtype=STORED)
        return out


class Net(nn.Module):
    def __init__(self, make: Callable[[int, int], nn.Module]) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down, self.norm = make(512, 1024), make(1024, 512), nn.LayerNorm(512, dtype=BF16)
        self.requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))  # type: ignore[no-any-return]


WAYS: dict[str, tuple[Callable[[int, int], nn.Module], str]] = {
    "int8 weights": (lambda inner, outer: Layer(inner, outer, torch.int8, _int8), "recover_scaled_linear"),
    "float8 weights": (lambda inner, outer: Layer(inner, outer, STORED, _float8), "recover_scaled_linear"),
    "int8, dynamic": (lambda inner, outer: Layer(inner, outer, torch.int8, _dynamic), "recover_integer_products"),
    "casting": (lambda inner, outer: Casting(inner, outer).requires_grad_(False).to(STORED), "fuse_linear"),
}


def _check(handle: CompiledModule) -> None:
    x = torch.randn(2, 256, 512, dtype=BF16, device="cuda")
    with torch.no_grad():
        expected, got = type(handle.module).forward(handle.module, x), handle(x)
    assert float((got - expected).float().norm() / expected.float().norm()) < 1e-2


@pytest.mark.parametrize("way", WAYS)
def test_it_is_replayed(way: str) -> None:
    make, rewrite = WAYS[way]
    handle = compile(Net(make).cuda(), CompileConfig())
    x = torch.randn(2, 256, 512, dtype=BF16, device="cuda")
    with torch.no_grad():
        expected = type(handle.module).forward(handle.module, x)
        results = [handle(x).clone() for _ in range(5)]
    for result in results:
        assert float((result - expected).float().norm() / expected.float().norm()) < 1e-2
    report = handle.engine.report
    assert report.calls["replayed"] and not report.calls["eager"], handle.report().text()
    assert report.signatures[-1].passes[rewrite] >= 1, report.signatures[-1].passes
    _check(handle)
