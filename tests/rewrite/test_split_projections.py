"""Linear layers that are faster apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.linear import linear
from tests.models import Forward
from tests.tracing import count, linears, rewritten

IN, QKV, HIDDEN = 16, 24, 32


def _rewritten(way: Callable[..., Any], *inputs: torch.Tensor, bias: bool = True) -> tuple[int, torch.fx.Graph]:
    """What ``split_projections`` changed, and the graph behind it."""
    layers = {"up": nn.Linear(IN, QKV + HIDDEN, bias=bias), "down": nn.Linear(QKV + HIDDEN, IN, bias=bias)}
    module = Forward(way, **layers)
    return rewritten("split_projections", module, *inputs, has_impl=lambda op, *_: op is linear)


def _split(x: torch.Tensor) -> Any:
    return torch.split(x, [QKV, HIDDEN], dim=-1)


WAYS: dict[str, Callable[..., Any]] = {
    "torch.split": lambda net, x: (lambda a, b: (a, F.gelu(b, approximate="tanh")))(*_split(net.up(x))),
    "Tensor.split": lambda net, x: (lambda a, b: (a, F.gelu(b)))(*net.up(x).split([QKV, HIDDEN], dim=2)),
    "split_with_sizes": lambda net, x: (lambda a, b: (F.silu(a), b))(*net.up(x).split_with_sizes([QKV, HIDDEN], -1)),
}


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
@pytest.mark.parametrize("name", WAYS)
def test_an_activation_behind_a_part_goes_into_a_product_of_its_own(name: str, bias: bool) -> None:
    found, graph = _rewritten(WAYS[name], torch.randn(2, 5, IN), bias=bias)
    assert found == 1 and count(graph, F.linear) == 1 and len(linears(graph, "act")) == 1
    assert not [node for node in graph.nodes if "split" in str(node.target)]


def _gate(first: bool, slices: bool) -> Callable[..., Any]:
    """As Flux.2's single blocks have it: the part is a gate and what it is the gate of. ``slices``: as Ovis's."""

    def way(net: Any, x: torch.Tensor) -> Any:
        attended, both = _split(net.up(x))
        half = both.shape[-1] // 2
        one, other = (both[..., :half], both[..., half:]) if slices else both.chunk(2, -1)
        return attended, F.silu(one) * other if first else one * F.silu(other)

    return way


@pytest.mark.parametrize("slices", [True, False])
@pytest.mark.parametrize("first", [True, False])
def test_a_gate_within_a_part_goes_into_a_product_of_its_own(first: bool, slices: bool) -> None:
    found, graph = _rewritten(_gate(first, slices), torch.randn(2, 5, IN))
    (gated,) = linears(graph, "gate")
    assert found == 1 and count(graph, F.linear) == 1 and gated.args[5:] == ((None, True) if first else ())
    assert count(graph, torch.mul, F.silu, torch.chunk) == 0


NEAR_MISSES: dict[str, Callable[..., Any]] = {
    "no activation": lambda net, x: (lambda a, b: (a, b * 2))(*_split(net.up(x))),
    "a gate of something else": lambda net, x: (lambda a, b: (a, F.silu(b.chunk(2, -1)[0]) * x, b.chunk(2, -1)[1]))(
        *_split(net.up(x))
    ),
    "others read the part": lambda net, x: (lambda a, b: (a, b, F.gelu(b)))(*_split(net.up(x))),
    "others read all of it": lambda net, x: (lambda y: (y * 2, F.gelu(_split(y)[1]), _split(y)[0]))(net.up(x)),
    "another dimension": lambda net, x: (lambda a, b: (a, F.gelu(b)))(*torch.split(net.up(x), [2, 3], dim=1)),
    "a part that nobody reads": lambda net, x: F.gelu(_split(net.up(x))[1]),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph = _rewritten(NEAR_MISSES[name], torch.randn(2, 5, IN))
    assert found == 0 and count(graph, F.linear) == 1 and len(linears(graph, "act")) == 0


def _inputs(rows: int = 64) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(2, rows, QKV), torch.randn(2, rows, HIDDEN)


def _joined(net: Any, a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    return net.down(torch.cat([a, b], dim=-1))


@pytest.mark.parametrize("bias", [True, False], ids=["bias", "no bias"])
def test_what_reads_two_joined_tensors_is_a_sum(bias: bool) -> None:
    module = Forward(_joined, down=nn.Linear(QKV + HIDDEN, IN, bias=bias))
    found, graph = rewritten("split_projections", module, *_inputs(), has_impl=lambda op, *_: op is linear)
    assert found == 1 and (count(graph, torch.cat), count(graph, F.linear), len(linears(graph, "residual"))) == (
        0,
        1,
        1,
    )


def test_without_an_impl_joined_tensors_stay() -> None:
    module = Forward(_joined, down=nn.Linear(QKV + HIDDEN, IN))
    found, graph = rewritten("split_projections", module, *_inputs())
    assert found == 0 and count(graph, torch.cat) == 1


STAY: dict[str, tuple[Callable[..., Any], int, int]] = {
    "others read it": (lambda net, a, b: (lambda both: (both, net.down(both)))(torch.cat([a, b], dim=-1)), IN, 64),
    "an activation behind it": (lambda net, a, b: F.silu(net.down(torch.cat([a, b], dim=-1))), IN, 64),
    "few rows": (lambda net, a, b: net.down(torch.cat([a, b], dim=-1)), IN, 5),
    "more results than columns": (lambda net, a, b: net.down(torch.cat([a, b], dim=-1)), QKV + HIDDEN, 64),
    "joined tokens": (lambda net, a, b: net.down(torch.cat([a, b.flatten(1).unflatten(1, (-1, QKV))], dim=1)), IN, 96),
}


@pytest.mark.parametrize("name", STAY)
def test_other_joined_tensors_stay(name: str) -> None:
    way, results, rows = STAY[name]
    module = Forward(way, down=nn.Linear(QKV if name == "joined tokens" else QKV + HIDDEN, results))
    found, graph = rewritten("split_projections", module, *_inputs(rows), has_impl=lambda op, *_: op is linear)
    assert found == 0 and count(graph, torch.cat) == 1
