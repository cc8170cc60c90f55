"""Quantising in the pass of the norm in front of it, and what only looks like that."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.ops.gated_sum import gated_sum
from sfast_core.ops.norm_quantise import norm_quantise
from sfast_core.ops.quantise import quantise
from sfast_core.ops.scaled_linear import scaled_linear
from sfast_core.rewrite import rewrite
from sfast_core.rewrite.graph import named
from sfast_core.weights.kitchen import CODES
from tests.kitchen import kitchen
from tests.models import Forward
from tests.tracing import count, evaluate, trace

KITCHEN: Any = kitchen()
BF16, E4M3 = CODES[torch.bfloat16], torch.float8_e4m3fn
B, L, C = 2, 5, 32
OPS = (ada_layer_norm, add_layer_norm, gated_sum, norm_quantise, quantise, scaled_linear)
Way = Callable[..., Any]


def net(way: Way) -> nn.Module:
    """``way`` gets the module, x, a residual, and rows for scale, shift and gate."""
    torch.manual_seed(0)
    module = Forward(way)
    parameters = {
        "q": torch.randint(-127, 128, (16, C), dtype=torch.int8),
        "factors": torch.full((16, 1), 0.01),
        "given": torch.tensor(0.05),
        "e4m3": torch.randn(16, C).to(E4M3),
        "weight": (torch.randn(C) * 0.2 + 1).bfloat16(),
        "bias": torch.randn(C).bfloat16(),
        "x_weight": (torch.randn(C) * 0.2 + 1).bfloat16(),
        "plain": torch.randn(16, C).bfloat16(),
    }
    for name, value in parameters.items():
        setattr(module, name, nn.Parameter(value, requires_grad=False))
    return module


def inputs() -> list[torch.Tensor]:
    return [torch.randn(B, L, C).bfloat16(), torch.randn(B, L, C).bfloat16(), *torch.randn(3, B, 1, C).bfloat16()]


def linear(net: Any, x: torch.Tensor, rotate: int = 0) -> Any:
    """A product of int8, in the shape in which ComfyUI calls it."""
    return KITCHEN.int8_linear(x.reshape(-1, C), net.q, net.factors, None, BF16, bool(rotate), rotate or 256).reshape(
        *x.shape[:-1], 16
    )


def linear_e4m3(net: Any, x: torch.Tensor) -> Any:
    numbers = KITCHEN.quantize_fp8(x.reshape(-1, C), net.given, CODES[E4M3])
    return torch._scaled_mm(
        numbers, net.e4m3.t(), scale_a=net.given, scale_b=net.given, out_dtype=torch.bfloat16
    ).reshape(*x.shape[:-1], 16)


def fused(
    way: Way, has: Callable[..., bool] = lambda op, *_: op in OPS
) -> tuple[int, torch.fx.Graph, list[Any], float]:
    """The places changed, the graph, the op's calls, and how far the results are from the module's own."""
    module, given = net(way), inputs()
    with torch.no_grad():
        expected = module(*given)
    graph = trace(module, *given).graph
    found = rewrite(graph, None, has_impl=has).counts["fuse_norm_quantise"]
    results = evaluate(graph, given)
    expected = expected if isinstance(expected, tuple) else (expected,)
    errors = [float((r.float() - e.float()).norm() / e.float().norm()) for r, e in zip(results, expected, strict=True)]
    return found, graph, [node for node in graph.nodes if node.target is norm_quantise], max(errors)


def layer(x: torch.Tensor, *affine: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (C,), *affine, eps=1e-6)


def rms(x: torch.Tensor, weight: torch.Tensor | None = None, eps: float | None = 1e-5) -> torch.Tensor:
    return F.rms_norm(x, (C,), weight, eps)


#: the way, and which of the op's optional tensors the call has
WAYS: dict[str, tuple[Way, str]] = {
    "LayerNorm": (lambda net, x, r, scale, shift, gate: linear(net, layer(x)), ""),
    "LayerNorm with weights and a sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, layer(s, net.weight, net.bias)), s))(x + r),
        "weight bias residual",
    ),
    "modulated": (
        lambda net, x, r, scale, shift, gate: linear(net, torch.addcmul(shift, layer(x), 1 + scale)),
        "scale shift",
    ),
    "modulated, rotated": (
        lambda net, x, r, scale, shift, gate: linear(net, torch.addcmul(shift, layer(x), 1 + scale), 16),
        "scale shift",
    ),
    "modulated behind a gated sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, layer(s) * (1 + scale) + shift), s * 2))(
            r + gate * x
        ),
        "scale shift residual gate",
    ),
    "two products": (
        lambda net, x, r, scale, shift, gate: (lambda n: linear(net, n) + linear(net, n))(
            torch.addcmul(shift, layer(x), 1 + scale)
        ),
        "scale shift",
    ),
    "LayerNorm with weights behind a gated sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, layer(s, net.weight, net.bias)), s * 2))(
            torch.addcmul(r, x, gate)
        ),
        "weight bias residual gate",
    ),
    "modulated in parts": (
        lambda net, x, r, scale, shift, gate: linear(
            net,
            torch.cat([torch.addcmul(shift, part, 1 + scale) for part in (layer(x)[:, :2], layer(x)[:, 2:])], dim=1),
        ),
        "scale shift",
    ),
    "RMSNorm modulated by token": (
        lambda net, x, r, scale, shift, gate: linear(net, rms(x) * (1 + r) + shift),
        "scale shift",
    ),
    "modulated, as images": (
        lambda net, x, r, scale, shift, gate: linear(
            net, torch.addcmul(shift, layer(x), 1 + scale).reshape(B, 1, L, C).reshape(-1, C)
        ).reshape(B, L, 16),
        "scale shift",
    ),
    "RMSNorm with a scale and a shift": (
        lambda net, x, r, scale, shift, gate: linear(net, rms(x) * (1 + scale) + shift),
        "scale shift",
    ),
    "RMSNorm with both behind a gated sum, as addcmul": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, torch.addcmul(shift, rms(s), 1 + scale)), s))(
            torch.addcmul(r, gate, x)
        ),
        "scale shift residual gate",
    ),
    "RMSNorm": (lambda net, x, r, scale, shift, gate: linear(net, rms(x, net.weight)), "weight"),
    "RMSNorm without weight and eps": (lambda net, x, r, scale, shift, gate: linear(net, rms(x, None, None)), ""),
    "RMSNorm with a scale": (
        lambda net, x, r, scale, shift, gate: linear(net, rms(x, net.weight) * (1 + scale)),
        "weight scale",
    ),
    "RMSNorm behind a sum": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, rms(s, net.weight)), s))(x + r),
        "weight residual",
    ),
    "RMSNorm behind the gated sum of another": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, rms(s, net.weight) * (1 + scale)), s))(
            r + gate.tanh() * rms(x, net.x_weight)
        ),
        "weight scale residual gate x_weight",
    ),
    "RMSNorm behind the gated sum of another, as addcmul": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, rms(s)), s))(
            torch.addcmul(r, gate, rms(x, net.x_weight))
        ),
        "residual gate x_weight",
    ),
    "RMSNorm behind the sum of another": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, rms(s, net.weight)), s))(
            r + rms(x, net.x_weight)
        ),
        "weight residual x_weight",
    ),
    "RMSNorm behind the sum of another with another eps": (
        lambda net, x, r, scale, shift, gate: (lambda s: (linear(net, rms(s, net.weight)), s))(
            r + rms(x, net.x_weight, 1e-3)
        ),
        "weight residual",
    ),
    "RMSNorm in float32, its weight less 1": (
        lambda net, x, r, scale, shift, gate: linear(
            net, F.rms_norm(x.float(), (C,), net.weight.float() + 1, 1e-5).bfloat16() * (1 + scale) + shift
        ),
        "weight scale shift",
    ),
    "RMSNorm behind a sum that is read before": (
        lambda net, x, r, scale, shift, gate: (lambda s: linear(net, rms(s) * (1 + s[:, :1])))(x + r),
        "scale",
    ),
}
_OPTIONAL = ("weight", "bias", "scale", "shift", "residual", "gate", "x_bias", "x_weight")


@pytest.mark.parametrize("name", WAYS)
def test_a_quantised_norm_is_one_op(name: str) -> None:
    way, names = WAYS[name]
    found, graph, (node,), error = fused(way)
    assert found == 1 and count(graph, quantise, ada_layer_norm, add_layer_norm) == 0
    call = vars(named(node))
    assert [key for key in (*_OPTIONAL, "by_range") if call[key] not in (None, False)] == names.split()
    assert call["offset"] == (1.0 if "less 1" in name else 0.0)
    assert call["part"] == (2 if "in parts" in name else 1)
    assert error < 2e-2


def test_float8() -> None:
    if not hasattr(torch, "_scaled_mm"):
        pytest.skip("this PyTorch has no product of float8")
    found, graph, (node,), error = fused(
        lambda net, x, r, scale, shift, gate: linear_e4m3(net, torch.addcmul(shift, layer(x), 1 + scale))
    )
    assert found == 1 and count(graph, quantise, ada_layer_norm) == 0 and node.args[3] == E4M3 and error < 6e-2


def test_sums_in_a_row_hand_on_what_they_sum_up() -> None:
    def way(
        net: Any, x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> Any:
        for _ in range(3):
            r = r + gate.tanh() * rms(x, net.x_weight)
            x = linear(net, rms(r, net.weight) * (1 + scale)).repeat(1, 1, 2)
        return r + x

    found, graph, nodes, error = fused(way)
    assert (
        found == 3
        and count(graph, F.rms_norm, quantise) == 0
        and all(node.args[10] is not None for node in nodes)
        and error < 5e-2
    )


NEAR_MISSES: dict[str, Way] = {
    "others read the norm": lambda net, x, r, scale, shift, gate: (lambda n: (n, linear(net, n)))(rms(x)),
    "a product of 16 bits reads it": lambda net, x, r, scale, shift, gate: (
        lambda n: linear(net, n) + F.linear(n, net.plain)
    )(layer(x)),
    "rotated and not": lambda net, x, r, scale, shift, gate: (lambda n: linear(net, n) + linear(net, n, 16))(rms(x)),
    "others read what is scaled": lambda net, x, r, scale, shift, gate: (lambda n: (n, linear(net, n * (1 + scale))))(
        rms(x)
    ),
    "nothing is added to the scale": lambda net, x, r, scale, shift, gate: linear(net, rms(x) * scale),
    "over more than the last dimension": lambda net, x, r, scale, shift, gate: linear(
        net, F.rms_norm(x, (L, C), None, 1e-5)
    ),
    "other rows": lambda net, x, r, scale, shift, gate: linear(
        net, F.rms_norm(x.reshape(B, L * 2, C // 2), (C // 2,), None, 1e-5).reshape(B, L, C)
    ),
    "an activation in between": lambda net, x, r, scale, shift, gate: linear(net, F.silu(layer(x))),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph, nodes, _ = fused(NEAR_MISSES[name])
    assert found == 0 and not nodes and count(graph, quantise) >= 1


def test_without_an_impl_all_stays() -> None:
    found, graph, nodes, _ = fused(WAYS["modulated"][0], lambda op, *_: op in OPS and op is not norm_quantise)
    assert found == 0 and not nodes and count(graph, quantise, ada_layer_norm) == 2
