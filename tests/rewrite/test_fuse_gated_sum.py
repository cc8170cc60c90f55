"""Residual sums with gates, and products with sigmoids, with a kernel for them and without."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.ops.gated_sum import gated_sum
from tests.models import Forward
from tests.tracing import count, rewritten

Way = Callable[..., Any]

# name: (forward of tokens, a residual and a gate, how many sums are one call)
SUMS: dict[str, tuple[Way, int]] = {
    "gate first": (lambda net, x, r, gate: r + gate * net.lin(x), 1),
    "gate last": (lambda net, x, r, gate: net.lin(x) * gate + r, 1),
    "by token": (lambda net, x, r, gate: r + net.lin(x) * x, 1),
    "in place": (lambda net, x, r, gate: (r * 2).add_(gate * x), 1),
    "others read the product": (lambda net, x, r, gate: (lambda y: (r + y, y))(gate * x), 0),
    "a number": (lambda net, x, r, gate: r + 2 * x, 0),
    "the residual is broadcast": (lambda net, x, r, gate: gate + x * r, 0),
    "another dtype": (lambda net, x, r, gate: r + gate.double() * x, 0),
}
#: Those that are one call in PyTorch already, or that none computes.
FOR_THE_KERNEL: dict[str, tuple[Way, int]] = {
    "addcmul": (lambda net, x, r, gate: torch.addcmul(r, net.lin(x), gate), 1),
    "addcmul with the gate first": (lambda net, x, r, gate: r.addcmul(gate, x), 1),
    "addcmul times a number": (lambda net, x, r, gate: torch.addcmul(r, x, gate, value=2), 0),
    "addcmul to a broadcast residual": (lambda net, x, r, gate: torch.addcmul(gate, x, r), 0),
    "a sigmoid": (lambda net, x, r, gate: net.lin(x) * torch.sigmoid(r), 1),
    "a sigmoid in front": (lambda net, x, r, gate: gate.sigmoid() * net.lin(x), 1),
    "others read the sigmoid": (lambda net, x, r, gate: (lambda y: (x * y, y))(torch.sigmoid(r)), 0),
    "a sigmoid of what it multiplies": (lambda net, x, r, gate: (y := net.lin(x)) * torch.sigmoid(y), 0),  # SiLU
    "a sigmoid larger than the tokens": (lambda net, x, r, gate: gate * torch.sigmoid(x), 0),
}


def _fused(way: Way, has_impl: bool) -> tuple[int, Any]:
    inputs = (torch.randn(2, 4, 8), torch.randn(2, 4, 8), torch.randn(2, 1, 8))
    module = Forward(lambda net, *xs: way(net, *xs), lin=nn.Linear(8, 8))
    return rewritten("fuse_gated_sum", module, *inputs, has_impl=lambda op, *_: has_impl and op is gated_sum)


@pytest.mark.parametrize("name", SUMS)
def test_sums_without_a_kernel(name: str) -> None:
    way, fused = SUMS[name]

    found, graph = _fused(way, has_impl=False)

    assert found == fused == count(graph, torch.addcmul)


@pytest.mark.parametrize("name", [*SUMS, *FOR_THE_KERNEL])
def test_sums_with_a_kernel(name: str) -> None:
    way, fused = (SUMS | FOR_THE_KERNEL)[name]

    found, graph = _fused(way, has_impl=True)

    assert found == fused == count(graph, gated_sum)


@pytest.mark.parametrize("name", FOR_THE_KERNEL)
def test_what_pytorch_computes_in_one_call_stays_without_a_kernel(name: str) -> None:
    assert _fused(FOR_THE_KERNEL[name][0], has_impl=False)[0] == 0
