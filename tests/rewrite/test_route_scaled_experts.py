"""Mixtures of experts whose weights are quantised, as libraries spell them, and what only looks like one that a kernel
computes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from sfast_core.capture.functional import cast_like
from sfast_core.capture.routed import mixture
from sfast_core.ops.quantise import quantise
from sfast_core.ops.routed_experts import routed_experts
from sfast_core.ops.routed_scaled_experts import routed_scaled_experts
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite.graph import named
from sfast_core.weights.kitchen import CODES
from tests.experts import Between, ByMask, BySorting
from tests.kitchen import kitchen
from tests.tracing import count, rewritten

KITCHEN: Any = kitchen()
WIDTH, HIDDEN, E4M3 = 16, 32, torch.float8_e4m3fn
BF16 = CODES[torch.bfloat16]


class Layer(nn.Module):
    """A linear layer of 8 bits: by row, rotated by ``rotate``; of float8 with its input by ``given``, or dequantised."""

    def __init__(
        self,
        width: int,
        features: int,
        dtype: torch.dtype,
        rotate: int = 0,
        given: float | None = 1.0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        plain = torch.randn(features, width) * width**-0.5
        one = torch.tensor(0.01) if dtype == E4M3 else None
        q, scale = quantise(plain, dtype, one, rotate)
        self.q, self.scale = (nn.Parameter(part, requires_grad=False) for part in (q, scale))
        self.rotate, self.given = rotate, given
        self.bias = nn.Parameter(torch.randn(features, dtype=torch.bfloat16)) if bias else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.q.dtype == torch.int8:
            turned = (self.rotate > 0, self.rotate or 256)
            return KITCHEN.int8_linear(x, self.q, self.scale, self.bias, BF16, *turned)  # type: ignore[no-any-return]
        if self.given is None:
            return F.linear(x, KITCHEN.dequantize_fp8(self.q, self.scale, BF16), self.bias)
        scale = torch.full((), self.given)
        quantised = KITCHEN.quantize_fp8(x, scale, CODES[E4M3])
        scales = {"scale_a": scale, "scale_b": self.scale}
        return torch._scaled_mm(quantised, self.q.t(), **scales, bias=self.bias, out_dtype=torch.bfloat16)


class Expert(nn.Module):
    """Two of these, or three."""

    def __init__(self, dtype: torch.dtype, gated: bool = False, second: float | None = 1.0, **how: Any) -> None:
        super().__init__()
        self.up = Layer(WIDTH, HIDDEN, dtype, bias=not gated, **how)
        self.gate = Layer(WIDTH, HIDDEN, dtype, **how) if gated else None
        self.down = Layer(HIDDEN, WIDTH, dtype, bias=not gated, **{**how, "given": second})

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.up(x)
        return self.down(F.gelu(hidden) if self.gate is None else F.silu(self.gate(x)) * hidden)


class Kept(nn.Module):
    """An expert of 16 bits whose weights are kept in 8, and cast at each call."""

    def __init__(self) -> None:
        super().__init__()
        sizes = ((HIDDEN, WIDTH), (HIDDEN, WIDTH), (WIDTH, HIDDEN))
        self.weights = nn.ParameterList([nn.Parameter((torch.randn(size) / 4).to(E4M3)) for size in sizes])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate, up, down = (weight.to(x.dtype) for weight in self.weights)
        return F.linear(F.silu(F.linear(x, gate)) * F.linear(x, up), down)


def routed(make: Callable[[int], nn.Module], kind: type[ByMask] = ByMask, *also: Any) -> tuple[int, Graph]:
    torch.manual_seed(0)
    ops = (quantise, scaled_linear, *(also or (routed_scaled_experts,)))
    net = Between(kind([make(number) for number in range(4)], WIDTH), WIDTH)
    for module in (net.first, net.last, net.mixture.gate):
        module.to(torch.bfloat16)
    x = torch.randn(2, 9, WIDTH, dtype=torch.bfloat16)
    try:
        with torch.no_grad():
            net(x)
    except RuntimeError as error:
        pytest.skip(f"this PyTorch has no such product on a CPU: {error}")
    return rewritten("route_experts", net, x, has_impl=lambda op, *_: op in ops)


KINDS: dict[str, tuple[Callable[[int], nn.Module], bool, int]] = {
    "int8": (lambda _: Expert(torch.int8), True, 0),
    "int8 rotated, a gate": (lambda _: Expert(torch.int8, True, rotate=16), True, 16),
    "float8": (lambda _: Expert(E4M3), True, 0),
    "float8, a gate": (lambda _: Expert(E4M3, True), True, 0),
    "float8 dequantised": (lambda _: Expert(E4M3, second=None, given=None), False, 0),
}


@pytest.mark.parametrize("mixed", [ByMask, BySorting])
@pytest.mark.parametrize("kind", KINDS)
def test_quantised_experts_are_one_op(kind: str, mixed: type[ByMask]) -> None:
    make, quantised, rotate = KINDS[kind]
    found, graph = routed(make, mixed)
    assert (found, count(graph, mixture, scaled_linear), count(graph, routed_scaled_experts)) == (1, 0, 1)
    assert count(graph, quantise) == int(quantised), "the rows, once; the hidden ones inside"
    (call,) = [named(node) for node in graph.nodes if node.target is routed_scaled_experts]
    assert (call.experts, call.rotate, call.out_dtype) == (4, rotate, torch.bfloat16)
    assert (call.input_scale is not None, call.gate is not None) == (quantised, "a gate" in kind)
    assert all(node.meta["source"].refs[1:] for node in (call.first, call.second)), "they lie together"


def test_weights_that_are_cast_are_cast_together() -> None:
    found, graph = routed(lambda _: Kept(), ByMask, routed_experts)
    assert (found, count(graph, routed_experts), count(graph, cast_like), count(graph, torch.cat)) == (1, 1, 3, 0)


NEAR: dict[str, Callable[[int], nn.Module]] = {
    "another rotation": lambda number: Expert(torch.int8, rotate=16 * (number % 2)),
    "hidden rows by scales of their own": lambda number: Expert(E4M3, second=1.0 + number),
    "rows by scales of their own": lambda number: Expert(E4M3, given=1.0 + number),
    "one dequantised": lambda number: Expert(E4M3, second=None if number == 2 else 1.0),
    "another format": lambda number: Expert(torch.int8 if number else E4M3),
}


@pytest.mark.parametrize("near", NEAR)
def test_what_only_looks_like_it_stays(near: str) -> None:
    found, graph = routed(NEAR[near])
    assert (found, count(graph, mixture)) == (0, 1)


def test_without_a_kernel_all_stays() -> None:
    found, graph = routed(KINDS["int8"][0], ByMask, routed_experts)
    assert (found, count(graph, mixture)) == (0, 1) and count(graph, scaled_linear) == 8
