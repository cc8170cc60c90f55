"""Products with weights that lie turned are linear layers, however libraries write them, and their weights what a
kernel reads.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.linear import linear
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite import rewrite
from tests.models import Forward
from tests.tracing import count, evaluate, rewritten, trace

BF16, INT8, E4M3 = torch.bfloat16, torch.int8, torch.float8_e4m3fn
Function = Callable[[Any, torch.Tensor], torch.Tensor]


def net(forward: Function, numbers: torch.dtype = INT8, dtype: torch.dtype = BF16) -> nn.Module:
    torch.manual_seed(0)
    module = Forward(forward)
    weight = torch.randn(32, 64)
    scale = weight.abs().amax(1, keepdim=True) / (127 if numbers is INT8 else 448)
    q = (weight / scale).round().to(INT8) if numbers is INT8 else (weight / scale).to(numbers)
    bias = torch.randn(32, dtype=dtype)
    module.q, module.scale, module.bias, module.plain = (
        nn.Parameter(each, requires_grad=False) for each in (q, scale, bias, weight.to(dtype))
    )
    return module


def _scale_behind(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As torchao's int8 weight-only."""
    y = torch.mm(x.reshape(-1, 64), net.q.t().to(x.dtype)) * net.scale.to(x.dtype).flatten()
    return y.reshape(*x.shape[:-1], 32) + net.bias  # type: ignore[no-any-return]


def _scale_in_front(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As torchao's float8 weight-only."""
    return torch.matmul(x, (net.q.t().to(torch.float32) * net.scale.t()).to(x.dtype)) + net.bias  # type: ignore[no-any-return]


def _addmm(net: Any, x: torch.Tensor) -> torch.Tensor:
    weight = (net.scale * net.q.float()).to(x.dtype)
    return torch.addmm(net.bias, x.reshape(-1, 64), weight.t()).reshape(*x.shape[:-1], 32)  # type: ignore[no-any-return]


def _quanto(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.linear(x, net.scale.to(x.dtype) * net.q.to(x.dtype), net.bias)


SPELLINGS: dict[str, tuple[Function, torch.dtype]] = {
    "a scale behind": (_scale_behind, INT8),
    "a scale in front": (_scale_in_front, E4M3),
    "addmm": (_addmm, INT8),
    "a layer": (_quanto, E4M3),
}


def _close(graph: torch.fx.Graph, module: nn.Module, x: torch.Tensor) -> None:
    (result,), expected = evaluate(graph, [x]), module(x)
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert float((result - expected).float().norm() / expected.float().norm()) < 1e-2


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_is_a_layer(spelling: str) -> None:
    forward, numbers = SPELLINGS[spelling]
    module, x = net(lambda net, x: F.gelu(forward(net, x)), numbers), torch.randn(2, 10, 64, dtype=BF16)
    graph = trace(module, x).graph
    rewrite(graph, None)
    assert count(graph, linear) == 1 and not count(graph, torch.mm, torch.addmm, torch.matmul, torch.reshape)
    _close(graph, module, x)


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_a_kernel_reads_the_numbers(spelling: str) -> None:
    forward, numbers = SPELLINGS[spelling]
    module, x = net(forward, numbers), torch.randn(2, 10, 64, dtype=BF16)
    graph = trace(module, x).graph
    found = rewrite(graph, None, has_impl=lambda op, *_: op is scaled_linear).counts
    assert found["recover_scaled_linear"] == 1 and count(graph, scaled_linear) == 1
    _close(graph, module, x)


def test_no_result_is_further_from_what_is_meant() -> None:
    """Rounding the weight costs no more than rounding the product at each step."""
    forward, _ = SPELLINGS["a scale behind"]
    module, x = net(forward), torch.randn(64, 64, dtype=BF16)
    meant = x.double() @ (module.q.double() * module.scale.double()).t() + module.bias.double()
    graph = trace(module, x).graph
    rewrite(graph, None)
    ours, theirs = ((result.double() - meant).norm() / meant.norm() for result in (evaluate(graph, [x])[0], module(x)))
    assert ours <= 1.1 * theirs, (float(ours), float(theirs))


NEAR_MISSES: dict[str, Function] = {
    "not turned": lambda net, x: torch.mm(x[:, :32], net.plain),
    "of the call": lambda net, x: torch.mm(x, x.t()),
    "half of the call": lambda net, x: torch.mm(x, (net.plain.t() * x[:1].t())),
    "a scale of the call": lambda net, x: torch.mm(x, net.plain.t()) * x[0, :32],
    "read twice": lambda net, x: (lambda y: y * net.bias + y)(torch.mm(x, net.plain.t())),
    "a factor": lambda net, x: torch.addmm(net.bias, x, net.plain.t(), alpha=2),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_one(name: str) -> None:
    module, x = net(NEAR_MISSES[name]), torch.randn(20, 64, dtype=BF16)
    graph = trace(module, x).graph
    rewrite(graph, None)
    assert count(graph, F.linear, linear) == (name in ("a scale of the call", "read twice"))
    _close(graph, module, x)


def _dynamic(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As torchao's int8 dynamic."""
    scale = x.abs().amax(-1, keepdim=True).float() / 127.5
    q = (x * (1 / scale)).round().clamp(-128, 127).to(INT8)
    sums = torch._int_mm(q.reshape(-1, 64), net.q.t())
    y = (sums.float() * scale.reshape(-1, 1)).to(x.dtype) * net.scale.flatten()
    return (y.reshape(*x.shape[:-1], 32) + net.bias).to(x.dtype)  # type: ignore[no-any-return]


def test_a_product_of_integers() -> None:
    module, x = net(_dynamic), torch.randn(2, 10, 64, dtype=BF16)
    graph = trace(module, x).graph
    assert rewrite(graph, None, has_impl=lambda op, *_: op is scaled_linear).counts["recover_integer_products"] == 1
    assert count(graph, scaled_linear) == 1
    _close(graph, module, x)
    meant = x.double() @ (module.q.double() * module.scale.double()).t() + module.bias.double()
    ours, theirs = ((result.double() - meant).norm() for result in (evaluate(graph, [x])[0], module(x)))
    assert ours <= 1.02 * theirs


def test_without_a_kernel_it_stays() -> None:
    found, graph = rewritten("recover_integer_products", net(_dynamic), torch.randn(20, 64, dtype=BF16))
    assert found == 0 and not count(graph, scaled_linear)


@pytest.mark.parametrize(
    "forward",
    [
        lambda net, x: torch._int_mm(x.to(INT8), net.q.t()).float() * net.scale.flatten(),
        lambda net, x: torch._int_mm(x.to(INT8), net.q.t()),
    ],
)
def test_one_without_both_scales_stays(forward: Function) -> None:
    graph = trace(net(forward), torch.randn(20, 64, dtype=BF16)).graph
    assert rewrite(graph, None, has_impl=lambda op, *_: op is scaled_linear).counts["recover_integer_products"] == 0
