"""Quantised products as libraries spell them become one op, and what only looks like one stays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite import rewrite
from sfast_core.weights.kitchen import CODES
from tests.kitchen import kitchen
from tests.models import Forward
from tests.tracing import count, evaluate, rewritten, trace

BF16 = CODES[torch.bfloat16]
E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
KITCHEN: Any = kitchen()


def has_impl(op: Any, *_: Any) -> bool:
    return op in (quantise, scaled_linear)


def net(
    forward: Callable[..., Any], dtype: torch.dtype = torch.int8, rotate: int = 0, rows: bool = True, width: int = 64
) -> nn.Module:
    torch.manual_seed(0)
    module = Forward(forward)
    weight = torch.randn(32, width)
    if dtype is torch.int8:
        q, scale = quantise(weight, torch.int8, None, rotate)
        q, scale = (q, scale) if rows else ((weight / 0.03).round().clamp(-128, 127).to(torch.int8), torch.tensor(0.03))
    else:
        q, scale = (weight / 0.01).to(dtype), torch.tensor(0.01)
    module.q, module.scale, module.given = (
        nn.Parameter(part, requires_grad=False) for part in (q, scale, torch.tensor(0.02))
    )
    module.bias = nn.Parameter(torch.randn(32, dtype=torch.bfloat16), requires_grad=False)
    return module


def scaled_mm(x: torch.Tensor, net: Any, scale: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
    return torch._scaled_mm(x, net.q.t(), scale_a=scale, scale_b=net.scale, bias=bias, out_dtype=torch.bfloat16)


def _turned_int8(net: Any) -> torch.Tensor:
    return KITCHEN.dequantize_int8_simple_dtype(net.q, net.scale, BF16).t()  # type: ignore[no-any-return]


SPELLINGS: dict[str, tuple[Callable[..., Any], dict[str, Any]]] = {
    "int8": (lambda net, x: KITCHEN.int8_linear(x, net.q, net.scale, net.bias, BF16), {}),
    "int8, one scale, no bias": (lambda net, x: KITCHEN.int8_linear(x, net.q, net.scale, None, BF16), {"rows": False}),
    "int8, rotated": (
        lambda net, x: KITCHEN.int8_linear(x, net.q, net.scale, net.bias, BF16, True, 16),
        {"rotate": 16},
    ),
    "int8 behind GELU": (
        lambda net, x: KITCHEN.int8_linear(x, net.q, net.scale, net.bias, BF16, False, 256, "gelu_tanh"),
        {},
    ),
    "int8 behind SwiGLU": (
        lambda net, x: KITCHEN.int8_linear(x, net.q, net.scale, net.bias, BF16, False, 256, "swiglu"),
        {"width": 32},
    ),
    "float8": (
        lambda net, x: scaled_mm(KITCHEN.quantize_fp8(x, torch.ones(()), CODES[E4M3]), net, torch.ones(()), net.bias),
        {"dtype": E4M3},
    ),
    "float8 with a given scale": (
        lambda net, x: scaled_mm(KITCHEN.quantize_fp8(x, net.given, CODES[E4M3]), net, net.given, None),
        {"dtype": E4M3},
    ),
    "float8 dequantised twice": (
        lambda net, x: F.linear(
            KITCHEN.dequantize_fp8(KITCHEN.quantize_fp8(x, net.given, CODES[E5M2]), net.given, BF16),
            KITCHEN.dequantize_fp8(net.q, net.scale, BF16),
        ),
        {"dtype": E5M2},
    ),
    "float8, full precision": (
        lambda net, x: F.linear(x, KITCHEN.dequantize_fp8(net.q, net.scale, BF16), net.bias),
        {"dtype": E4M3},
    ),
    "float8, addmm": (
        lambda net, x: torch.addmm(net.bias, x, KITCHEN.dequantize_fp8(net.q.t(), net.scale, BF16)),
        {"dtype": E4M3},
    ),
    "float8, mm": (lambda net, x: torch.mm(x, KITCHEN.dequantize_fp8(net.q, net.scale, BF16).t()), {"dtype": E4M3}),
    "int8, in a batch": (
        lambda net, x: (
            torch.bmm(x.view(2, 10, 64)[:, 3:].expand(2, 7, 64), _turned_int8(net).expand(2, 64, 32)) + net.bias
        ),
        {},
    ),
    "int8, in a batch, no bias": (
        lambda net, x: torch.bmm(x.view(2, 10, 64), _turned_int8(net).expand(2, 64, 32)),
        {"rows": False},
    ),
    "int8, full precision": (
        lambda net, x: F.linear(x, KITCHEN.dequantize_int8_simple_dtype(net.q, net.scale, BF16)),
        {},
    ),
    "int8, rotated, full precision": (
        lambda net, x: F.linear(x, KITCHEN.dequantize_int8_convrot_weight_dtype(net.q, net.scale, 16, BF16), net.bias),
        {"rotate": 16},
    ),
}


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_each_spelling_is_one_op(spelling: str) -> None:
    forward, how = SPELLINGS[spelling]
    module, x = net(forward, **how), torch.randn(20, 64, dtype=torch.bfloat16)
    with torch.no_grad():
        try:
            expected = module(x)
        except RuntimeError as error:
            pytest.skip(f"this PyTorch has no such product on a CPU: {error}")
    graph = trace(module, x).graph
    found, graph = _recovered(graph)
    assert found == 1 and count(graph, scaled_linear) == 1
    (result,) = evaluate(graph, [x])
    assert result.dtype == expected.dtype and result.shape == expected.shape
    assert float((result - expected).float().norm() / expected.float().norm()) < 1e-2


def _recovered(graph: torch.fx.Graph) -> tuple[int, torch.fx.Graph]:
    return rewrite(graph, None, has_impl=has_impl).counts["recover_scaled_linear"], graph


def test_products_that_read_one_input_quantise_it_once() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return KITCHEN.int8_linear(x, net.q, net.scale, None, BF16) + KITCHEN.int8_linear(
            x, net.q, net.scale, net.bias, BF16
        )  # type: ignore[no-any-return]

    found, graph = _recovered(trace(net(forward), torch.randn(20, 64, dtype=torch.bfloat16)).graph)
    assert found == 2 and count(graph, quantise) == 1


def test_without_a_kernel_the_librarys_operator_stays() -> None:
    forward, how = SPELLINGS["int8"]
    found, graph = rewritten("recover_scaled_linear", net(forward, **how), torch.randn(20, 64, dtype=torch.bfloat16))
    assert found == 0 and count(graph, KITCHEN.int8_linear) == 1


def test_a_weight_that_is_not_turned_is_no_linear_layer() -> None:
    module = net(lambda net, x: torch.mm(x, KITCHEN.dequantize_fp8(net.q, net.scale, BF16)), E4M3)
    found, graph = _recovered(trace(module, torch.randn(20, 32, dtype=torch.bfloat16)).graph)
    assert found == 0 and count(graph, torch.mm) == 1


def test_a_product_by_another_scale_keeps_both() -> None:
    """Numbers that were quantised by one scale and are multiplied by another mean something else: they stay as they
    are.
    """
    forward = lambda net, x: scaled_mm(KITCHEN.quantize_fp8(x, torch.ones(()), CODES[E4M3]), net, net.given, None)  # noqa: E731
    found, graph = _recovered(trace(net(forward, E4M3), torch.randn(20, 64, dtype=torch.bfloat16)).graph)
    assert found == 1 and count(graph, quantise) == 0 and count(graph, scaled_linear) == 1


def test_weights_that_differ_within_a_batch_stay() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.view(2, 10, 64), torch.stack([_turned_int8(net), _turned_int8(net)]))

    found, graph = _recovered(trace(net(forward), torch.randn(20, 64, dtype=torch.bfloat16)).graph)
    assert found == 0 and count(graph, torch.bmm) == 1


def test_what_is_added_to_a_batched_product_and_is_no_bias_stays() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        return torch.bmm(x.view(2, 10, 64), _turned_int8(net).expand(2, 64, 32)) + x.view(2, 10, 64)[:, :, :32]

    found, graph = _recovered(trace(net(forward), torch.randn(20, 64, dtype=torch.bfloat16)).graph)
    assert found == 1 and count(graph, torch.add) == 1
