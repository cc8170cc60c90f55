"""Keys and values that several queries share, in the spellings by which models repeat them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from sfast_core.ops.attention import attention
from tests.models import Forward
from tests.tracing import rewritten

Function = Callable[..., Any]


def _spread(x: torch.Tensor, times: int = 2) -> torch.Tensor:
    return x[:, :, None].expand(*x.shape[:2], times, *x.shape[2:]).reshape(x.shape[0], -1, *x.shape[2:])


#: name: (attention of four heads of queries and two of keys, how many heads the op's keys have)
SHARED: dict[str, tuple[Function, int]] = {
    "repeated": (
        lambda net, q, k, v: F.scaled_dot_product_attention(
            q, k.repeat_interleave(2, dim=1), v.repeat_interleave(2, -3)
        ),
        2,
    ),
    "expanded": (lambda net, q, k, v: F.scaled_dot_product_attention(q, _spread(k), _spread(v)), 2),
    "repeated behind unsqueeze, before they are turned": (
        lambda net, q, k, v: F.scaled_dot_product_attention(
            q,
            *(x.transpose(1, 2).unsqueeze(3).repeat(1, 1, 1, 2, 1).flatten(2, 3).transpose(1, 2) for x in (k, v)),
        ),
        2,
    ),
    "tokens repeated behind unsqueeze, before they are turned": (
        lambda net, q, k, v: F.scaled_dot_product_attention(
            q,
            *(
                x.repeat(1, 2, 1, 1).transpose(1, 2).unsqueeze(2).repeat(1, 1, 2, 1, 1).flatten(1, 2).transpose(1, 2)
                for x in (k, v)
            ),
        ),
        4,
    ),
    "one after the other": (
        lambda net, q, k, v: F.scaled_dot_product_attention(q, k.repeat(1, 2, 1, 1), v.repeat(1, 2, 1, 1)),
        4,
    ),
    "the keys alone": (lambda net, q, k, v: F.scaled_dot_product_attention(q, _spread(k), v.repeat(1, 2, 1, 1)), 4),
    "tokens": (
        lambda net, q, k, v: F.scaled_dot_product_attention(
            q, *(x.repeat(1, 2, 1, 1).repeat_interleave(2, dim=2) for x in (k, v))
        ),
        4,
    ),
}


@pytest.mark.parametrize("name", SHARED)
def test_keys_that_queries_share_are_not_repeated(name: str) -> None:
    function, heads = SHARED[name]
    _, graph = rewritten(
        "fuse_attention", Forward(function), torch.randn(1, 4, 6, 8), torch.randn(1, 2, 5, 8), torch.randn(1, 2, 5, 8)
    )
    (node,) = [node for node in graph.nodes if node.target is attention]
    assert node.args[1].meta["val"].shape[1] == heads
