"""Gated feed-forward layers with quantised weights, and what only looks like them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch.fx import Graph, Node

from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_glu import scaled_glu
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite import rewrite
from sfast_core.weights.kitchen import CODES
from tests.kitchen import kitchen
from tests.models import Forward
from tests.tracing import count, evaluate, trace

BF16 = CODES[torch.bfloat16]
KITCHEN: Any = kitchen()
C, N = 64, 48
OPS = (quantise, scaled_linear, scaled_glu)
Way = Callable[..., Any]


def layer(net: Any, x: torch.Tensor, name: str, rotate: bool = False) -> Any:
    """As ComfyUI's quantised layers call it."""
    q, scale, bias = getattr(net, name), getattr(net, f"{name}_scale"), getattr(net, f"{name}_bias")
    return KITCHEN.int8_linear(x.reshape(-1, x.shape[-1]), q, scale, bias, BF16, rotate, 16).reshape(
        *x.shape[:-1], q.shape[0]
    )


def net(way: Way) -> Forward:
    torch.manual_seed(0)
    module = Forward(way)
    for name, features, bias in (
        ("w1", N, False),
        ("w3", N, False),
        ("both", 2 * N, True),
        ("other", N, True),
        ("w2", C, False),
    ):
        depth = N if name == "w2" else C
        parts = {
            name: torch.randint(-127, 128, (features, depth), dtype=torch.int8),
            f"{name}_scale": torch.rand(features, 1) / 300,
        }
        parts[f"{name}_bias"] = torch.randn(features).bfloat16() if bias else None
        for key, part in parts.items():
            setattr(module, key, None if part is None else torch.nn.Parameter(part, requires_grad=False))
    return module


def fused(way: Way, has: Callable[..., bool] = lambda op, *_: op in OPS) -> tuple[int, Graph, list[Node], float]:
    """How many there were, the graph, the op's calls, and how far the results are from the module's own."""
    module, given = net(way), [torch.randn(2, 8, C).bfloat16()]
    with torch.no_grad():
        expected = module(*given)
    graph = trace(module, *given).graph
    found = rewrite(graph, None, has_impl=has).counts["fuse_scaled_glu"]
    results = evaluate(graph, given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    errors = [float((r.float() - e.float()).norm() / e.float().norm()) for r, e in zip(results, expected, strict=True)]
    return found, graph, [node for node in graph.nodes if node.target is scaled_glu], max(errors)


#: the way, its activation, whether there are biases
WAYS: dict[str, tuple[Way, str, bool]] = {
    "two layers": (lambda net, x: layer(net, F.silu(layer(net, x, "w1")) * layer(net, x, "w3"), "w2"), "silu", False),
    "two layers, the gate last": (lambda net, x: layer(net, x, "w3") * F.gelu(layer(net, x, "w1")), "gelu", False),
    "two layers, rotated": (
        lambda net, x: layer(net, x, "w3", True) * F.silu(layer(net, x, "w1", True)),
        "silu",
        False,
    ),
    "halves": (lambda net, x: (lambda a, b: F.silu(a) * b)(*layer(net, x, "both").chunk(2, -1)), "silu", True),
    "halves, the second is the gate": (
        lambda net, x: (lambda a, b: a * F.gelu(b, approximate="tanh"))(*layer(net, x, "both").chunk(2, -1)),
        "gelu_tanh",
        True,
    ),
    "within the library's product": (
        lambda net, x: KITCHEN.int8_linear(
            layer(net, x, "both").reshape(-1, 2 * N), net.w2, net.w2_scale, None, BF16, False, 256, "swiglu"
        ),
        "silu",
        True,
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_gated_layer_is_one_product(name: str) -> None:
    way, act, biases = WAYS[name]
    found, graph, (node,), error = fused(way)
    assert (
        found == 1
        and node.args[9] == act
        and [arg is not None for arg in node.args[5:7]] == [biases, biases]
        and error < 3e-2
    )
    assert count(graph, F.silu, torch.mul) == 0 and count(graph, scaled_linear) == (
        "w2" in str(way.__code__.co_consts) or "library" in name
    )


STAY: dict[str, Way] = {
    "others read the gate": lambda net, x: (lambda g: (F.silu(g) * layer(net, x, "w3"), g))(layer(net, x, "w1")),
    "others read the product": lambda net, x: (lambda a: (F.silu(layer(net, x, "w1")) * a, a))(layer(net, x, "w3")),
    "of other inputs": lambda net, x: F.silu(layer(net, x, "w1")) * layer(net, x + 1, "w3"),
    "one is rotated": lambda net, x: F.silu(layer(net, x, "w1", True)) * layer(net, x, "w3"),
    "no activation": lambda net, x: layer(net, x, "w1") * layer(net, x, "w3"),
    "halves that others read": lambda net, x: (lambda both: (F.silu(both[..., :N]) * both[..., N:], both))(
        layer(net, x, "both")
    ),
    "one half twice": lambda net, x: (lambda a, b: F.silu(a) * a + b)(*layer(net, x, "both").chunk(2, -1)),
}


@pytest.mark.parametrize("name", STAY)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph, nodes, error = fused(STAY[name])
    assert found == 0 and not nodes and error < 3e-2 and count(graph, scaled_linear) >= 1


def test_without_an_impl_all_stays() -> None:
    found, graph, nodes, _ = fused(WAYS["two layers"][0], lambda op, *_: op in OPS and op is not scaled_glu)
    assert found == 0 and not nodes and count(graph, scaled_linear) == 3
