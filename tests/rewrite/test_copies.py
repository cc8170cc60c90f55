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
