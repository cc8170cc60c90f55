"""Tokens that a model keeps in the shape of the picture."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from tests.models import Forward
from tests.tracing import count, rewritten

B, T, H, W, C = 2, 3, 4, 5, 16
Way = Callable[..., Any]


def _block(net: Any, x: torch.Tensor, scale: torch.Tensor, shift: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    """As Cosmos-Predict2's."""
    for _ in range(2):
        x = x + gate * net.lin(F.layer_norm(x, (C,), eps=1e-6) * (1 + scale) + shift)
    return x


def _inputs(*rows: int) -> list[torch.Tensor]:
    return [torch.randn(B, T, H, W, C), *torch.randn(3, *rows, 1, 1, C)]


def _rewritten(last: str, way: Way, *inputs: torch.Tensor) -> tuple[int, torch.fx.Graph]:
    return rewritten(last, Forward(way, lin=nn.Linear(C, C)), *inputs, has_impl=lambda op, *_: op is ada_layer_norm)


@pytest.mark.parametrize("rows", [(B, T), (B, 1), (1, 1)], ids=str)
def test_a_block_is_fused(rows: tuple[int, int]) -> None:
    found, graph = _rewritten("fuse_ada_layer_norm", _block, *_inputs(*rows))
    assert found == 2 and count(graph, F.layer_norm) == 0
    assert all(node.args[0].meta["val"].dim() == 3 for node in graph.nodes if node.target is ada_layer_norm)


def test_what_is_done_to_tokens_has_three_dimensions() -> None:
    found, graph = _rewritten("tokens_in_rows", _block, *_inputs(B, T))
    tokens = [
        node for node in graph.nodes if node.target in (torch.add, torch.mul, torch.addcmul, F.layer_norm, F.linear)
    ]
    assert found == 12 and all(node.meta["val"].dim() == 3 for node in tokens if node.meta["val"].numel() > B * T * C)
    sizes = [tuple(node.meta["val"].shape) for node in tokens if node.target is F.linear]
    assert sizes == [(B * T, H * W, C)] * 2


STAY: dict[str, tuple[Way, list[torch.Tensor]]] = {
    "nothing is modulated": (lambda net, x: x + net.lin(F.layer_norm(x, (C,))), _inputs(B, T)[:1]),
    "three dimensions": (
        lambda net, x, scale: F.layer_norm(x, (C,)) * (1 + scale),
        [torch.randn(B, 6, C), torch.randn(B, 1, C)],
    ),
    "nothing is normed": (lambda net, x, scale: net.lin(x) * scale, [torch.randn(B, T, H, C), torch.randn(B, 1, 1, C)]),
    "few channels": (
        lambda net, x, scale: F.layer_norm(x, (8,)) * scale,
        [torch.randn(B, T, H, 8), torch.randn(B, 1, 1, 8)],
    ),
    "rows of another dimension": (
        lambda net, x, scale: F.layer_norm(x, (C,)) * scale,
        [torch.randn(B, T, H, W, C), torch.randn(1, 1, H, 1, C)],
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_what_stays(name: str) -> None:
    way, inputs = STAY[name]
    found, _ = _rewritten("tokens_in_rows", way, *inputs)
    assert found == 0


def test_rows_that_are_split_otherwise_stay_as_they_are() -> None:
    """A frame has its own scale, an image its own gate: the latter is read by each of the image's frames."""
    inputs = [torch.randn(B, T, H, W, C), torch.randn(B, T, 1, 1, C), torch.randn(B, 1, 1, 1, C)]
    found, _ = _rewritten(
        "tokens_in_rows", lambda net, x, scale, gate: F.layer_norm(x, (C,)) * (1 + scale) + x * gate, *inputs
    )
    assert found == 3
