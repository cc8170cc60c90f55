"""Quantising as torchao writes it out, of int8 and of float8, becomes the op and goes into the norm or the activation
in front.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.norm_quantise import norm_quantise
from sfast_core.ops.quantise import quantise
from sfast_core.rewrite.pipeline import rewrite
from tests.models import Forward
from tests.tracing import count, evaluate, trace

B, L, C = 2, 6, 32
EPS = torch.finfo(torch.float32).eps


def by_range(x: torch.Tensor, eps: float = EPS, bits: float = 127.5) -> tuple[torch.Tensor, torch.Tensor]:
    low, high = (getattr(x, name)([x.dim() - 1], True) for name in ("amin", "amax"))
    low, high = torch.minimum(low, torch.zeros_like(low)), torch.maximum(high, torch.zeros_like(high))
    step = torch.clamp(torch.maximum(-low, high) / bits, eps)
    scale, zero = step.to(torch.float32), torch.full_like(step, 0).to(torch.int8)
    return torch.clamp(torch.round(x * torch.reciprocal(scale)) + zero, -128, 127).to(torch.int8), scale


def by_row(x: torch.Tensor, largest: float = 448.0) -> tuple[torch.Tensor, torch.Tensor]:
    scale = (x.abs().amax([x.dim() - 1], True) / largest).to(torch.float32)
    return torch.clamp(x.to(torch.float32) / scale, -448.0, 448.0).to(torch.float8_e4m3fn), scale


def of_all(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    scale = (x.abs().amax([0, 1, 2], True) / 448.0).to(torch.float32)
    return torch.clamp(x.to(torch.float32) / scale, -448.0, 448.0).to(torch.float8_e4m3fn), scale


def _net(how: Callable[..., Any]) -> nn.Module:
    """A norm, two products of it, an activation, one of that."""

    def product(net: Any, name: str, x: torch.Tensor) -> torch.Tensor:
        q, scale = how(x)
        return (q.float() @ getattr(net, name).t() * scale).to(x.dtype)

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        h = F.layer_norm(x, (C,))
        return product(net, "down", F.gelu(product(net, "up", h))) + product(net, "beside", h)

    net = Forward(forward)
    for name, n, k in (("up", 2 * C, C), ("beside", C, C), ("down", C, 2 * C)):
        setattr(net, name, nn.Parameter(torch.randn(n, k) / k**0.5, requires_grad=False))
    return net


def _rewritten(net: nn.Module, x: torch.Tensor, has_impl: Callable[..., bool] = lambda *_: True) -> Any:
    found = trace(net, x)
    rewrite(found.graph, None, (), has_impl)
    return found.graph


@pytest.mark.parametrize("how", [by_range, by_row])
def test_it_goes_into_what_is_in_front(how: Callable[..., Any]) -> None:
    net, x = _net(how), torch.randn(B, L, C).bfloat16()
    graph = _rewritten(net, x, lambda op, *_: op in (quantise, norm_quantise))
    assert count(graph, norm_quantise) == 1 and count(graph, quantise) == 1, graph
    (made,) = [node for node in graph.nodes if node.target is quantise]
    assert made.args[4] == "gelu" and not any(
        count(graph, name) for name in ("amax", "round", "clamp", torch.clamp, torch.round)
    )
    got, expected = evaluate(graph, [x])[0], net(x)
    assert float((got - expected).float().norm() / expected.float().norm()) < 1e-2


def test_a_scale_of_the_whole_tensor_is_one_pass() -> None:
    net, x = _net(of_all), torch.randn(B, L, C).bfloat16()
    graph = _rewritten(net, x, lambda op, *_: op is quantise)
    assert (
        count(graph, quantise) == 2
        and count(graph, torch.linalg.vector_norm) == 2
        and not count(graph, "amax", torch.amax, torch.abs)
    ), graph
    got, expected = evaluate(graph, [x])[0], net(x)
    assert float((got - expected).float().norm() / expected.float().norm()) < 1e-2


#: name: what is written a little differently, and means something else
OTHERS: dict[str, Callable[[torch.Tensor], tuple[torch.Tensor, torch.Tensor]]] = {
    "another least step": lambda x: by_range(x, 1e-5),
    "another range": lambda x: by_range(x, bits=127.0),
    "another largest": lambda x: by_row(x, 240.0),
    "another input's scale": lambda x: (by_row(x)[0], by_row(x * 2)[1]),
}


@pytest.mark.parametrize("name", OTHERS)
def test_what_means_something_else(name: str) -> None:
    net, x = _net(OTHERS[name]), torch.randn(B, L, C)
    graph = _rewritten(net, x, lambda op, *_: op is quantise)
    torch.testing.assert_close(evaluate(graph, [x])[0], net(x), rtol=2e-2, atol=2e-2)
    assert name == "another input's scale" or not count(graph, quantise)


def test_without_a_kernel_it_stays() -> None:
    net, x = _net(by_range), torch.randn(B, L, C)
    graph = _rewritten(net, x, lambda *_: False)
    assert not count(graph, quantise)
    torch.testing.assert_close(evaluate(graph, [x])[0], net(x), rtol=1e-2, atol=1e-2)
