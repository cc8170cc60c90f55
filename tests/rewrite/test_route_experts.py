"""Mixtures of experts, and what only looks like one that a kernel computes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from sfast_core.capture.routed import mixture
from sfast_core.ops.routed_experts import routed_experts
from sfast_core.rewrite.graph import named
from tests.experts import Between, ByMask, BySorting, FeedForward, Gated
from tests.tracing import count, rewritten

WIDTH = 16


def routed(
    experts: list[nn.Module],
    kind: type[ByMask] = ByMask,
    has: Callable[..., bool] = lambda op, *_: op is routed_experts,
) -> tuple[int, Graph]:
    torch.manual_seed(0)
    net = Between(kind(experts, WIDTH, shared=FeedForward(WIDTH, 32)), WIDTH)
    return rewritten("route_experts", net, torch.randn(2, 9, WIDTH), has_impl=has)


@pytest.mark.parametrize("kind", [ByMask, BySorting])
@pytest.mark.parametrize(
    ("make", "act", "gated"),
    [
        (lambda: FeedForward(WIDTH, 32), "gelu", False),
        (lambda: FeedForward(WIDTH, 32, F.relu), "relu", False),
        (lambda: Gated(WIDTH, 32), "silu", True),
    ],
)
def test_experts_are_one_op(kind: type[ByMask], make: Callable[[], nn.Module], act: str, gated: bool) -> None:
    found, graph = routed([make() for _ in range(4)], kind)
    assert (found, count(graph, mixture, torch.stack), count(graph, routed_experts)) == (1, 0, 1)
    (call,) = [named(node) for node in graph.nodes if node.target is routed_experts]
    assert (call.act, call.experts, call.gate is not None) == (act, 4, gated)
    assert count(graph, F.linear) == 5, "in front, the gate's, two of the shared expert's, the last"
    assert all(node.meta["source"].refs[1:] for node in (call.first, call.second)), "they lie together"


def other_activation(number: int) -> nn.Module:
    return FeedForward(WIDTH, 32, F.silu if number == 2 else F.gelu)


def other_width(number: int) -> nn.Module:
    return FeedForward(WIDTH, 48 if number == 2 else 32)


def unknown_activation(number: int) -> nn.Module:
    return FeedForward(WIDTH, 32, torch.sigmoid)


def one_layer(number: int) -> nn.Module:
    return nn.Linear(WIDTH, WIDTH)


class WithBias(Gated):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__(width, hidden)
        self.w3 = nn.Linear(width, hidden)


NEAR: list[Callable[[int], nn.Module]] = [
    other_activation,
    other_width,
    unknown_activation,
    one_layer,
    lambda number: WithBias(WIDTH, 32),
]


@pytest.mark.parametrize("make", NEAR)
def test_what_only_looks_like_it_stays(make: Callable[[int], nn.Module]) -> None:
    found, graph = routed([make(number) for number in range(4)])
    assert (found, count(graph, mixture)) == (0, 1)


def test_without_a_kernel_all_stays() -> None:
    found, graph = routed([FeedForward(WIDTH, 32) for _ in range(4)], has=lambda *_: False)
    assert (found, count(graph, mixture)) == (0, 1)


def test_weights_that_are_others_too_are_put_together_at_each_call() -> None:
    first = FeedForward(WIDTH, 32)
    rest = [FeedForward(WIDTH, 32) for _ in range(3)]
    rest[0].up.weight = first.up.weight  # tied
    found, graph = routed([first, *rest])
    (call,) = [named(node) for node in graph.nodes if node.target is routed_experts]
    assert found == 1 and call.first.target is torch.cat and call.second.op == "placeholder"


def test_a_result_that_is_read_elsewhere_keeps_its_expert() -> None:
    class Also(ByMask):
        pass

    class Reads(Between):
        def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
            x = self.first(x)
            return self.last(x + self.mixture(x)) + self.mixture.experts[1](x.flatten(0, -2)).view_as(x)

    net = Reads(Also([FeedForward(WIDTH, 32) for _ in range(4)], WIDTH), WIDTH)
    has = lambda op, *_: op is routed_experts  # noqa: E731
    found, graph = rewritten("route_experts", net, torch.randn(2, 9, WIDTH), has_impl=has)
    assert (found, count(graph, mixture)) == (0, 1)
