"""Mixtures of experts, of which no record can hold which rows each expert gets, are recorded by their meaning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Untraceable
from sfast_core.capture.routed import mixture, why_live
from tests.experts import Between, ByMask, BySorting, FeedForward, Gated, Halving
from tests.quantised import Quantised
from tests.tracing import count, evaluate, try_record

WIDTH = 16


def made(kind: type[ByMask], gated: bool = False, experts: int = 4, shared: bool = True) -> Between:
    torch.manual_seed(0)
    layer: Any = Gated if gated else FeedForward
    more = layer(WIDTH, 32) if shared else None
    return Between(kind([layer(WIDTH, 32) for _ in range(experts)], WIDTH, shared=more), WIDTH)


@pytest.mark.parametrize("shared", [True, False])
@pytest.mark.parametrize("gated", [True, False])
@pytest.mark.parametrize("kind", [ByMask, BySorting])
def test_a_mixture_is_what_its_gate_and_its_experts_say(kind: type[ByMask], gated: bool, shared: bool) -> None:
    net, x = made(kind, gated, shared=shared), torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        expected = net(x)
    result, found = try_record(net, x)
    assert not isinstance(found, Untraceable), found.reason
    assert torch.equal(result, expected), "the recorded call's result is the module's own"
    assert count(found.graph, mixture) == 1
    for tokens in (x, torch.randn(2, 9, WIDTH), torch.zeros(2, 9, WIDTH)):  # the last: all to the same experts
        with torch.no_grad():
            torch.testing.assert_close(evaluate(found.graph, [tokens])[0], net(tokens))


def test_an_experts_overflow_is_nobodys_who_did_not_choose_it() -> None:
    outputs = [torch.full((3, 2), float("inf")), torch.ones(3, 2)]
    y = mixture(torch.ones(3, 1, dtype=torch.long), torch.ones(3, 1), outputs)
    assert torch.equal(y, torch.ones(3, 2))


def test_what_is_no_sum_of_its_experts_is_refused() -> None:
    net, x = made(Halving), torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        expected = net(x)
    result, found = try_record(net, x)
    assert torch.equal(result, expected)
    assert isinstance(found, Untraceable) and "a Halving is no sum of its experts by its gate" in found.reason


def test_a_gate_that_says_otherwise_what_is_chosen_is_refused() -> None:
    class Dense(ByMask):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return sum(expert(x) for expert in self.experts) + self.gate(x)[0].sum()  # type: ignore[return-value]

    net = made(Dense, shared=False)
    net.mixture.gate = nn.Sequential()  # its result is no choice
    result, found = try_record(net, torch.randn(2, 9, WIDTH))
    assert isinstance(found, Untraceable) and "the gate of a Dense says otherwise" in found.reason


class Switched(ByMask):
    off = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros_like(x) if self.off else super().forward(x)


def _turned_off(net: Between) -> None:
    net.mixture.off = True


def _with_one_choice(net: Between) -> None:
    net.mixture.gate.top_k = 1


def _with_another_forward(net: Between) -> None:
    net.mixture.forward = lambda x: x * 2


def _in_training(net: Between) -> None:
    net.mixture.training = True


def _with_other_weights(net: Between) -> None:
    net.mixture.experts[1].up.weight = nn.Parameter(torch.randn(32, WIDTH), requires_grad=False)
    net.mixture.gate.weight.add_(1)


@pytest.mark.parametrize(
    "change", [_turned_off, _with_one_choice, _with_another_forward, _in_training, _with_other_weights]
)
def test_what_steers_it_is_watched(change: Callable[[Between], None]) -> None:
    """By the module's own code, too, which is not what the graph is made of."""
    net = made(Switched)
    handle = compile(net, CompileConfig(allow_cpu=True))
    x = torch.randn(2, 9, WIDTH)
    with torch.no_grad():
        for _ in range(3):
            handle(x)
        change(net)
        for _ in range(3):
            torch.testing.assert_close(handle(x), Between.forward(net, x))


class Blocks(Quantised):
    """Numbers of 8 bits, a scale of each row, and something else that they mean."""

    def __tensor_flatten__(self) -> tuple[list[str], Any]:
        (names, context), self._more = super().__tensor_flatten__(), self._params.scale
        return [*names, "_more"], context


@pytest.mark.parametrize("kind", [ByMask, BySorting])
@pytest.mark.parametrize(
    ("experts", "weights", "live"),
    [(4, None, False), (6, None, False), (6, Quantised, False), (4, Blocks, False), (6, Blocks, True)],
)
def test_no_call_runs_eager(kind: type[ByMask], experts: int, weights: type[Quantised] | None, live: bool) -> None:
    """Nor the first. Where no kernel can do better, more than twice as many products as are chosen run live."""
    net = made(kind, experts=experts)
    if weights is not None:
        for expert in net.mixture.experts:
            for layer in (expert.up, expert.down):
                layer.weight = nn.Parameter(weights.of(layer.weight.detach()), requires_grad=False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            x = torch.randn(2, 9, WIDTH)
            expected = Between.forward(net, x)
            torch.testing.assert_close(handle(x), expected, rtol=1e-4, atol=1e-4)
    calls = handle.engine.report.calls
    assert calls["eager"] == 0 and calls["fused"] == 2, (calls, handle.engine.report.reasons)
    said = [entry for entry in handle.engine.report.text().splitlines() if "goes through experts of its own" in entry]
    assert bool(said) == live


def test_rows_that_each_expert_quantises_in_its_own_way_have_no_kernel() -> None:
    mixed = made(ByMask, experts=6).mixture
    assert why_live(mixed) is None
    mixed.experts[0].up.input_scale = nn.Parameter(torch.tensor(1.0), requires_grad=False)
    assert "no kernel" in str(why_live(mixed))
    assert why_live(made(ByMask, experts=4).mixture) is None
