"""Two layers of which one gates the other, as one product."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.linear import linear
from tests.models import Forward
from tests.tracing import count, rewritten

Way = Callable[..., Any]


def _packed(way: Way, has_impl: bool = True) -> tuple[int, torch.fx.Graph, list[Any]]:
    layers = {
        "w1": nn.Linear(8, 12, bias=False),
        "w3": nn.Linear(8, 12, bias=False),
        "a": nn.Linear(8, 12),
        "b": nn.Linear(8, 12),
        "w2": nn.Linear(12, 8),
    }
    found, graph = rewritten(
        "pack_gated",
        Forward(way, **layers),
        torch.randn(2, 5, 8),
        has_impl=lambda op, *args: has_impl and args[3:5] == ("silu", True),
    )
    return found, graph, [node for node in graph.nodes if node.target is linear and node.args[4:5] == (True,)]


WAYS: dict[str, tuple[Way, str, bool]] = {
    "the gate first": (lambda net, x: net.w2(F.silu(net.w1(x)) * net.w3(x)), "w3.weight+w1.weight", False),
    "the gate last": (lambda net, x: net.w3(x.sin()) * F.silu(net.w1(x.sin())), "w3.weight+w1.weight", False),
    "with biases": (lambda net, x: F.silu(net.a(x)) * net.b(x), "b.weight+a.weight", True),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_gated_layer_is_one_product(name: str) -> None:
    way, source, bias = WAYS[name]
    found, graph, (node,) = _packed(way)
    assert (
        found == 1
        and str(node.args[1].meta["source"]) == f"{source} packed"
        and (node.args[2] is not None) == bias
        and node.args[3] == "silu"
    )
    assert count(graph, torch.mul, F.silu) == 0


STAY: dict[str, Way] = {
    "of other inputs": lambda net, x: F.silu(net.w1(x)) * net.w3(x + 1),
    "others read the gate": lambda net, x: (lambda g: (F.silu(g) * net.w3(x), g))(net.w1(x)),
    "others read the other": lambda net, x: (lambda u: (F.silu(net.w1(x)) * u, u))(net.w3(x)),
    "a bias on one": lambda net, x: F.silu(net.a(x)) * net.w3(x),
    "one layer twice": lambda net, x: F.silu(net.w1(x)) * net.w1(x),
    "an activation without a kernel": lambda net, x: F.relu(net.w1(x)) * net.w3(x),
    "a weight that others read": lambda net, x: F.silu(net.w1(x)) * net.w3(x) + net.w3(x * 2),
}


@pytest.mark.parametrize("name", STAY)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph, nodes = _packed(STAY[name])
    assert found == 0 and not nodes and count(graph, torch.mul) >= 1


def test_without_an_impl_all_stays() -> None:
    assert _packed(WAYS["the gate first"][0], has_impl=False)[0] == 0
