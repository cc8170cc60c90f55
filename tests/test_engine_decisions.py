"""Forwards that decide by the values of their inputs: a trace serves the calls that decide as the recorded one did."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

ONES, PADDED, LONGER = (
    torch.ones(2, 5, dtype=torch.long),
    torch.tensor([[1] * 5, [1, 1, 1, 0, 0]]),
    torch.tensor([[1] * 5, [1, 0, 0, 0, 0]]),
)


class Attention(nn.Module):
    """As transformers does: without padding there is no mask."""

    def __init__(self, decide: Callable[[torch.Tensor], Any] = lambda mask: mask.all()) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)
        self.decide = decide

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).chunk(3, dim=-1)
        seen = None if self.decide(mask) else mask[:, None].bool()
        return nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=seen)


def check(net: nn.Module, *masks: torch.Tensor) -> dict[str, int]:
    """Calls with these masks and ever other numbers give what the module itself gives; how they ran."""
    net.eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for mask in masks:
            x = torch.randn(2, 5, 8)
            torch.testing.assert_close(net(x, mask), type(net).forward(net, x, mask), rtol=1e-5, atol=1e-6)
    return dict(handle.engine.report.calls)


DECISIONS = {
    "all": lambda mask: mask.all(),
    "a comparison": lambda mask: torch.all(mask == 1),
    "a sum": lambda mask: mask.sum() == mask.numel(),
    "several": lambda mask: mask[:, :1].all() and not (mask == 0).any(),
    "equal": lambda mask: torch.equal(mask, torch.ones_like(mask)),
    "is in it": lambda mask: 0 not in mask,
    "a value": lambda mask: mask.bool().all().item(),
    "of a part written in place": lambda mask: mask.clone().mul_(2).ge(2).all(),
}


@pytest.mark.parametrize("name", DECISIONS)
def test_each_decision_has_a_trace_of_its_own(name: str, path: str) -> None:
    assert check(Attention(DECISIONS[name]), *[ONES, PADDED, LONGER] * 3) == {"traced": 2, path: 7}


def test_a_decision_that_comes_once_is_no_reason_to_trace_the_others_again(path: str) -> None:
    assert check(Attention(), ONES, ONES, PADDED, ONES, ONES) == {"traced": 2, path: 3}


class Twice(Attention):
    """What is asked second depends on what came out first, and would be an error else."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        if mask.all():
            return self.project(x)
        return self.project(x) * (2 if mask[:, 2].all() else 3)


def test_a_decision_behind_another(path: str) -> None:
    assert check(Twice(), *[ONES, PADDED, LONGER] * 3) == {"traced": 3, path: 6}


class Inside(nn.Module):
    """A part of a model decides, by one of its own arguments."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.attention = Attention()

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.attention(self.first(x), mask)


def test_a_part_of_a_model_decides(path: str) -> None:
    assert check(Inside(), *[ONES, PADDED] * 3) == {"traced": 2, path: 4}


class OneWay(Attention):
    """Can be recorded on one way only."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.project(x) if mask.all() else self.project(x) * float(mask.sum())


def test_the_reason_against_one_way_is_none_against_the_other(path: str) -> None:
    assert check(OneWay(), *[PADDED, ONES] * 3) == {"traced": 2, "eager": 2, path: 2}


class Weight(Attention):
    """Decides by a weight, which is too much to be computed twice."""

    def forward(self, x: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
        return self.project(x) if self.project(x).sum() > 0 else -self.project(x)


def test_what_weights_decide_is_read_as_ever() -> None:
    assert check(Weight(), *[ONES] * 3) == {"traced": 1, "eager": 2}


class InEachLayer(nn.Module):
    """As IP-Adapters do: each layer asks anew, of a copy of its own, whether this step is within its range."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(8, 8) for _ in range(70))

    def forward(self, x: torch.Tensor, sigmas: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            sigma = sigmas.detach().double()[0].item()
            if sigma >= 3:
                x = x + 0.1 * layer(x)
        return x


def test_what_many_layers_ask_alike_is_asked_once() -> None:
    """Up to so many operations are run once more at each call; on a GPU each of them waits for it."""
    steps = [torch.full((2,), sigma) for sigma in (5.0, 4.0, 2.0, 3.5, 1.0)]
    assert check(InEachLayer(), *steps) == {"traced": 2, "fused": 3}
