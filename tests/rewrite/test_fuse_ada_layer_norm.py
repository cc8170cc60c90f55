"""The modulation behind a LayerNorm, with the gated residual in front of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.rewrite.graph import named
from tests.models import Forward
from tests.tracing import count, rewritten

B, L, C = 2, 5, 16
Way = Callable[..., Any]


def _norm(x: torch.Tensor) -> torch.Tensor:
    return F.layer_norm(x, (C,), eps=1e-6)


def _inputs(dtype: torch.dtype = torch.float32) -> list[torch.Tensor]:
    """Tokens, a residual, and rows for scale, shift and gate."""
    return [torch.randn(B, L, C, dtype=dtype), torch.randn(B, L, C, dtype=dtype), *torch.randn(3, B, 1, C, dtype=dtype)]


def _fused(way: Way, *inputs: torch.Tensor, has_impl: bool = True) -> tuple[int, torch.fx.Graph, list[Any]]:
    found, graph = rewritten(
        "fuse_ada_layer_norm", Forward(lambda net, *xs: way(*xs)), *inputs, has_impl=lambda *_: has_impl
    )
    return found, graph, [node for node in graph.nodes if node.target is ada_layer_norm]


WAYS: dict[str, Way] = {
    "addcmul": lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x), 1 + scale),
    "addcmul, scale first": lambda x, r, scale, shift, gate: torch.addcmul(shift, scale + 1, _norm(x)),
    "product and sum": lambda x, r, scale, shift, gate: _norm(x) * (1 + scale) + shift,
    "shift first": lambda x, r, scale, shift, gate: shift + (scale + 1) * _norm(x),
    "a scale for each token": lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x), 1 + r),
    "a norm with weights": lambda x, r, scale, shift, gate: torch.addcmul(
        shift, F.layer_norm(x, (C,), gate[0, 0], shift[0, 0]), 1 + scale
    ),
    "rows seen as such behind the sum": lambda x, r, scale, shift, gate: (
        _norm(x) * (1 + scale[:, 0])[:, None] + shift[:, 0, None]
    ),
}


@pytest.mark.parametrize("name", WAYS)
def test_a_modulated_norm_is_one_op(name: str) -> None:
    found, graph, (node,) = _fused(WAYS[name], *_inputs())
    assert found == 1 and named(node).residual is None and named(node).gate is None
    assert count(graph, add_layer_norm, torch.add, torch.mul, torch.addcmul) == 0


SUMS: dict[str, Way] = {
    "gate first": lambda x, r, gate: r + gate * x,
    "gate last": lambda x, r, gate: x * gate + r,
    "addcmul": lambda x, r, gate: torch.addcmul(r, x, gate),
    "addcmul, gate first": lambda x, r, gate: torch.addcmul(r, gate, x),
    "in place": lambda x, r, gate: r.clone().add_(gate * x),
}


@pytest.mark.parametrize("name", SUMS)
def test_the_gated_residual_goes_along(name: str) -> None:
    def way(x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> Any:
        total = SUMS[name](x, r, gate)
        return total, torch.addcmul(shift, _norm(total), 1 + scale)

    found, graph, (node,) = _fused(way, *_inputs())
    assert found == 1 and [arg.name for arg in node.args if isinstance(arg, torch.fx.Node)] == [
        f"input_{i}" for i in (0, 2, 3, 1, 4)
    ]
    assert count(graph, torch.add, torch.mul, torch.addcmul) == 0


def test_the_bias_of_the_layer_behind_the_gate_goes_along() -> None:
    def way(
        net: Any, x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
    ) -> Any:
        total = r + gate * net.out(x)
        return total, torch.addcmul(shift, _norm(total), 1 + scale)

    module = Forward(way, out=nn.Linear(C, C))
    found, graph = rewritten("fuse_ada_layer_norm", module, *_inputs(), has_impl=lambda *_: True)
    (node,), (linear,) = (
        [node for node in graph.nodes if node.target is target] for target in (ada_layer_norm, F.linear)
    )
    assert found == 1 and node.args[0] is linear and named(node).x_bias is not None and linear.args[2] is None


def test_a_residual_without_a_gate() -> None:
    found, _, (node,) = _fused(
        lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x + r), 1 + scale), *_inputs()
    )
    assert found == 1 and node.args[4] is not None and node.args[5] is None


def test_a_product_that_others_read_stays() -> None:
    def way(x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> Any:
        gated = gate * x
        return gated, torch.addcmul(shift, _norm(r + gated), 1 + scale)

    found, graph, (node,) = _fused(way, *_inputs())
    assert found == 1 and node.args[5] is None and count(graph, torch.mul) == 1


def _read_in_between(
    x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor
) -> Any:
    total = torch.addcmul(r, x, gate)
    normed = _norm(total)
    return torch.addcmul(shift * total.mean(1, keepdim=True), normed, 1 + scale)


def _read_before(x: torch.Tensor, r: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> Any:
    total = r + gate * x
    normed = _norm(total)
    shift = shift * total.mean(1, keepdim=True)
    return torch.addcmul(shift, normed, 1 + scale)


NEAR_MISSES: dict[str, Way] = {
    "others read the norm": lambda x, r, scale, shift, gate: (lambda n: (n, torch.addcmul(shift, n, 1 + scale)))(
        _norm(x)
    ),
    "nothing is added to the scale": lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x), scale),
    "2 is added to the scale": lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x), 2 + scale),
    "a factor on the product": lambda x, r, scale, shift, gate: torch.addcmul(shift, _norm(x), 1 + scale, value=0.5),
    "no shift": lambda x, r, scale, shift, gate: _norm(x) * (1 + scale),
    "the sum makes the shift": _read_before,
    "the sum, as addcmul, makes the shift": _read_in_between,
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, _, nodes = _fused(NEAR_MISSES[name], *_inputs())
    assert found == 0 and not nodes


def test_without_an_impl_all_stays() -> None:
    found, graph, nodes = _fused(WAYS["addcmul"], *_inputs(), has_impl=False)
    assert found == 0 and not nodes and count(graph, torch.addcmul) == 1
