"""Copies that change nothing, and those that do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[[Any, torch.Tensor], Any]

# name: (forward, repetitions and concatenations left)
COPIES: dict[str, tuple[Function, int]] = {
    "repeated by ones": (lambda net, x: net.lin(x).unsqueeze(2).repeat(1, 1, 1, 1).flatten(1, 2), 0),
    "repeated by a list of ones": (lambda net, x: net.lin(x).repeat((1, 1, 1)), 0),
    "repeated by ones in front": (lambda net, x: net.lin(x).repeat(1, 1, 1, 1), 0),
    "repeated": (lambda net, x: net.lin(x).repeat(1, 2, 1), 1),
    "repeated in front": (lambda net, x: net.lin(x).repeat(2, 1, 1, 1), 1),
    "one joined": (lambda net, x: torch.cat([net.lin(x)], 1), 0),
    "one joined with nothing": (lambda net, x: torch.cat((net.lin(x), x[:, :0].repeat(1, 0, 1)), dim=1), 0),
    "two joined with nothing": (lambda net, x: torch.cat((net.lin(x), x[:, :0], x), dim=1), 1),
    "one joined with none in another dtype": (lambda net, x: torch.cat((net.lin(x), x[:, :0].double()), dim=1), 1),
    "two joined": (lambda net, x: torch.cat((net.lin(x), x), dim=1), 1),
}


@pytest.mark.parametrize("name", COPIES)
def test_copies(name: str) -> None:
    function, left = COPIES[name]
    found, graph = rewritten("drop_copies", Forward(function, lin=nn.Linear(8, 8)), torch.randn(2, 4, 8))
    assert count(graph, torch.cat, "repeat") == left and (found > 0) == (left == 0 or "with nothing" in name)
    assert all(len(node.args[0]) <= 2 for node in graph.nodes if node.target is torch.cat)


# name: (forward of tokens, a residual and a gate, how many sums are one call)
SUMS: dict[str, tuple[Callable[..., Any], int]] = {
    "gate first": (lambda net, x, r, gate: r + gate * net.lin(x), 1),
    "gate last": (lambda net, x, r, gate: net.lin(x) * gate + r, 1),
    "by token": (lambda net, x, r, gate: r + net.lin(x) * x, 1),
    "in place": (lambda net, x, r, gate: (r * 2).add_(gate * x), 1),
    "others read the product": (lambda net, x, r, gate: (lambda y: (r + y, y))(gate * x), 0),
    "a number": (lambda net, x, r, gate: r + 2 * x, 0),
    "the residual is broadcast": (lambda net, x, r, gate: gate + x * r, 0),
    "another dtype": (lambda net, x, r, gate: r + gate.double() * x, 0),
}


@pytest.mark.parametrize("name", SUMS)
def test_gated_sums(name: str) -> None:
    function, fused = SUMS[name]
    inputs = (torch.randn(2, 4, 8), torch.randn(2, 4, 8), torch.randn(2, 1, 8))
    found, graph = rewritten(
        "fuse_gated_sum", Forward(lambda net, *xs: function(net, *xs), lin=nn.Linear(8, 8)), *inputs
    )
    assert found == fused == count(graph, torch.addcmul)
