"""Joining again what lies side by side once layers are one, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import Forward
from tests.tracing import count, rewritten

C, H, D = 16, 2, 8


def _joined(way: Callable[..., Any]) -> tuple[int, torch.fx.Graph]:
    layers = {name: nn.Linear(C, H * D, bias=False) for name in ("q", "k", "v")}
    return rewritten("rejoin_packed", Forward(way, **layers), torch.randn(2, 5, C))


def _attention(qkv: torch.Tensor) -> torch.Tensor:
    """As Hunyuan3D 2.1 sees them: a head's queries, keys and values side by side."""
    q, k, v = qkv.view(2, 5, H, -1).split(D, -1)
    return F.scaled_dot_product_attention(*(x.transpose(1, 2) for x in (q, k, v)))


def test_what_lies_side_by_side_is_not_joined() -> None:
    found, graph = _joined(lambda net, x: _attention(torch.cat((net.q(x * 2), net.k(x * 2), net.v(x * 2)), -1)))
    assert (found, count(graph, torch.cat)) == (1, 0)
    (chunks,) = [node for node in graph.nodes if node.target is torch.chunk]
    assert [part.stride() for part in chunks.meta["val"]] == [(240, 48, 24, 1)] * 3


def test_a_part_of_it_is_a_view() -> None:
    def way(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = x * 2
        both = torch.cat((net.k(y), net.v(y)), -1).view(2, 5, H, -1)
        return torch.cat((both, net.q(y).view(2, 5, H, -1)), -1)

    found, graph = _joined(way)
    assert (found, count(graph, torch.cat)) == (1, 1)


def _of(way: Callable[..., Any]) -> Callable[..., Any]:
    return lambda net, x: way(*(layer(x * 2) for layer in (net.q, net.k, net.v)))


STAY: dict[str, Callable[..., Any]] = {
    "in another order": _of(lambda q, k, v: torch.cat((v, k, q), -1)),
    "with one twice": _of(lambda q, k, v: torch.cat((q, q, k), -1) + v[..., :1]),
    "along the tokens": _of(lambda q, k, v: torch.cat((q, k, v), 1)),
    "with something between": _of(lambda q, k, v: torch.cat((q, v), -1) * k[..., :1]),
}


@pytest.mark.parametrize("name", STAY)
def test_other_joins_stay(name: str) -> None:
    found, graph = _joined(STAY[name])
    assert (found, count(graph, torch.cat)) == (0, 1)
