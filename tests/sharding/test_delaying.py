"""What an exchange doesn't need is computed while it is on its way."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.sharding import Arrived, Gather, delay, delaying
from sfast_core.sharding.spelling import name_of
from tests.models import Forward
from tests.sharding.devices import cut_of, run
from tests.sharding.transformers import FluxLike, heads, joined_heads


def block(net: Any, x: torch.Tensor) -> torch.Tensor:
    """Attention and a feed-forward layer beside one another."""
    up = F.gelu(net.up(x))
    q, k, v = heads(net.q(x)), heads(net.k(x)), heads(net.v(x))
    return joined_heads(F.scaled_dot_product_attention(q, k, v)) + net.down(up) + x


def test_a_product_that_an_exchange_does_not_need_is_computed_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    torch.manual_seed(0)
    monkeypatch.setattr(delaying, "_WORTH_BYTES", 1)
    net = Forward(block, **{name: nn.Linear(16, 16) for name in ("q", "k", "v", "up", "down")})
    x = torch.randn(1, 12, 16)
    made = cut_of(net, x)
    assert [delay(graph) for graph in made.graphs] == [5, 5]
    for graph in made.graphs:
        graph.lint()
        nodes = list(graph.nodes)
        begins, ends = (
            next(at for at, node in enumerate(nodes) if isinstance(node.target, kind)) for kind in (Gather, Arrived)
        )
        assert [name_of(node) for node in nodes[begins + 1 : ends]] == [
            "linear",
            "gelu",
            "linear",
            "reshape",
            "permute",
        ]
    with torch.no_grad():
        expected = net(x)
    for (result,) in run(made, [x]):
        torch.testing.assert_close(result, expected)


def test_what_reads_no_large_weight_stays_where_it_is() -> None:
    made = cut_of(FluxLike().eval(), *FluxLike.inputs())
    before = [node.name for node in made.graphs[0].nodes]
    assert delay(made.graphs[0]) == 0 and [node.name for node in made.graphs[0].nodes] == before
