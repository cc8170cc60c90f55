"""GEGLU, and a linear layer with the activation behind it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import Forward
from tests.tracing import count, linears, rewritten

Function = Callable[..., Any]
TOKENS = (2, 5, 8)


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(function, lin=nn.Linear(8, 12), bare=nn.Linear(8, 12, bias=False))


def gated(split: Callable[[torch.Tensor], Any], approximate: str = "none") -> Function:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        value, gate = split(net.lin(x))
        return value * F.gelu(gate, approximate=approximate)

    return function


def with_both(use: Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]) -> Function:
    """``use(the linear layer's result, value, gate)``."""

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        both = net.lin(x)
        return use(both, *both.chunk(2, dim=-1))

    return function


# name: (forward of tokens, its act or None where it must not match)
GEGLUS: dict[str, tuple[Function, str | None]] = {
    "chunk": (gated(lambda y: y.chunk(2, dim=-1)), "gelu"),
    "chunk, torch's": (gated(lambda y: torch.chunk(y, 2, dim=2)), "gelu"),
    "split": (gated(lambda y: y.split(6, dim=-1)), "gelu"),
    "split, sizes": (gated(lambda y: torch.split(y, [6, 6], dim=-1)), "gelu"),
    "slices": (gated(lambda y: (y[..., :6], y[..., 6:])), "gelu"),
    "the first half is the gate, by slices": (gated(lambda y: (y[..., 6:], y[:, :, :6])), "gelu"),
    "slices that aren't halves": (gated(lambda y: (y[..., 1:7], y[..., 6:])), None),
    "one half twice": (gated(lambda y: (y[..., :6], y[..., :6])), None),
    "tanh": (gated(lambda y: y.chunk(2, dim=-1), "tanh"), "gelu_tanh"),
    "gate first in the product": (with_both(lambda both, value, gate: F.gelu(gate) * value), "gelu"),
    "no bias": (lambda net, x: (lambda v, g: v * F.gelu(g))(*net.bare(x).chunk(2, dim=-1)), "gelu"),
    "the first half is the gate": (with_both(lambda both, gate, value: value * F.gelu(gate)), "gelu"),
    "the first half is the gate, and in the product": (
        with_both(lambda both, gate, value: F.silu(gate) * value),
        "silu",
    ),
    "silu": (with_both(lambda both, value, gate: value * F.silu(gate)), "silu"),
    "another activation": (with_both(lambda both, value, gate: value * torch.tanh(gate)), None),
    "relu": (with_both(lambda both, gate, value: value * F.relu(gate)), None),
    "both are gates": (with_both(lambda both, one, other: F.silu(one) * F.silu(other)), None),
    "a gate in front that is used again": (with_both(lambda both, gate, value: value * F.silu(gate) + gate), None),
    "one value for all": (with_both(lambda both, gate, value: value[..., :1] * F.silu(gate)), None),
    "along the tokens": (lambda net, x: (lambda v, g: v * F.gelu(g))(*net.lin(x[:, :4]).chunk(2, dim=1)), None),
    "three parts": (lambda net, x: (lambda v, g, _: v * F.gelu(g))(*net.lin(x).chunk(3, dim=-1)), None),
    "a sum": (with_both(lambda both, value, gate: value + F.gelu(gate)), None),
    "the value used again": (with_both(lambda both, value, gate: value * F.gelu(gate) + value), None),
    "the gate used again": (with_both(lambda both, value, gate: value * F.gelu(gate) + gate), None),
    "the gelu used again": (with_both(lambda both, value, gate: (lambda g: value * g + g)(F.gelu(gate))), None),
    "the linear used again": (with_both(lambda both, value, gate: value * F.gelu(gate) + both.sum()), None),
    "of two linears": (lambda net, x: net.lin(x).chunk(2, dim=-1)[0] * F.gelu(net.bare(x).chunk(2, dim=-1)[1]), None),
    "of no linear": (lambda net, x: (lambda v, g: v * F.gelu(g))(*x.chunk(2, dim=-1)), None),
}


@pytest.mark.parametrize("name", GEGLUS)
def test_geglu(name: str) -> None:
    function, act = GEGLUS[name]
    found, graph = rewritten("fuse_linear", build(function), torch.randn(TOKENS))
    nodes = linears(graph, "gate")
    assert found == len(nodes) == (act is not None)
    assert [node.args[3] for node in nodes] == [act] * found
    assert all((node.args[5:] == (None, True)) == name.startswith("the first half") for node in nodes)
    assert (count(graph, F.linear) == 0) == bool(found) or name == "of no linear"


def quick_gelu(factor: float = 1.702, swap: bool = False) -> Function:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.lin(x)
        return torch.sigmoid(factor * y) * y if swap else y * torch.sigmoid(y * factor)

    return function


def of_linear(use: Callable[[torch.Tensor], torch.Tensor]) -> Function:
    return lambda net, x: use(net.lin(x))


# name: (forward of tokens, its act or None where it must not match)
ACTS: dict[str, tuple[Function, str | None]] = {
    "gelu": (of_linear(F.gelu), "gelu"),
    "gelu, tanh": (of_linear(lambda y: F.gelu(y, approximate="tanh")), "gelu_tanh"),
    "silu": (of_linear(F.silu), "silu"),
    "x * sigmoid(x)": (of_linear(lambda y: y * torch.sigmoid(y)), "silu"),
    "relu": (of_linear(F.relu), "relu"),
    "relu in place": (of_linear(lambda y: F.relu(y, inplace=True)), "relu"),
    "relu, a method": (of_linear(lambda y: y.relu()), "relu"),
    "quick gelu": (quick_gelu(), "quick_gelu"),
    "quick gelu, the gate first": (quick_gelu(swap=True), "quick_gelu"),
    "no bias": (lambda net, x: F.gelu(net.bare(x)), "gelu"),
    "another factor": (quick_gelu(1.5), None),
    "the linear used again": (of_linear(lambda y: F.gelu(y) + y), None),
    "quick gelu, the linear used again": (of_linear(lambda y: y * torch.sigmoid(1.702 * y) + y), None),
    "quick gelu, the gate used again": (of_linear(lambda y: (lambda g: y * g + g)(torch.sigmoid(1.702 * y))), None),
    "a sigmoid of something else": (lambda net, x: net.lin(x) * torch.sigmoid(1.702 * net.bare(x)), None),
    "something in between": (of_linear(lambda y: F.gelu(y + 1)), None),
    "another activation": (of_linear(torch.tanh), None),
    "no linear": (lambda net, x: F.gelu(x), None),
}


@pytest.mark.parametrize("name", ACTS)
def test_linear_and_activation(name: str) -> None:
    function, act = ACTS[name]
    found, graph = rewritten("fuse_linear", build(function), torch.randn(TOKENS))
    nodes = linears(graph, "act")
    assert found == len(nodes) == (act is not None)
    assert [node.args[3] for node in nodes] == [act] * found
    if act is not None:
        assert count(graph, F.linear, F.silu, torch.sigmoid, torch.mul) == 0
