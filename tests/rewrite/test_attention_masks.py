"""How masks have to lie for attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.attention import attention
from sfast_core.rewrite.passes.fuse_attention import in_rows
from tests.models import Forward
from tests.tracing import count, rewritten

SHAPES = [(2, 2, 6, 8), (2, 2, 5, 8), (2, 2, 5, 8)]  # of queries, keys and values


def biased_twice(net: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Two layers with the bias of T5, a table of a number for each head, and something else that reads it."""
    bias = net.table(torch.arange(30).view(6, 5)).permute(2, 0, 1)[None]
    first = F.scaled_dot_product_attention(q, k, v, bias)
    return F.scaled_dot_product_attention(first, k, v, bias) * bias.mean()


def test_a_mask_whose_heads_lie_innermost_is_copied_once_for_all_layers() -> None:
    net = Forward(biased_twice, table=nn.Embedding(30, 2))
    _, graph = rewritten("fuse_attention", net, *(torch.randn(shape) for shape in SHAPES))
    masks = {node.args[3] for node in graph.nodes if node.target is attention}
    assert count(graph, attention) == 2 and len(masks) == count(graph, in_rows) == 1
    (mask,) = masks
    assert mask.target is in_rows and mask.meta["val"].is_contiguous()


@pytest.mark.parametrize("keys", (slice(0, 5), slice(0, 1)))
def test_a_mask_in_rows_is_read_where_it_lies(keys: slice) -> None:
    """Also a part of longer rows, and one number for all keys, which is spread anyway."""
    net = Forward(lambda net, q, k, v: F.scaled_dot_product_attention(q, k, v, q[..., keys]))
    _, graph = rewritten("fuse_attention", net, *(torch.randn(shape) for shape in SHAPES))
    assert count(graph, attention) == 1 and count(graph, in_rows) == 0
