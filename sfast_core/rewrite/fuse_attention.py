"""Attention by whichever exact backend is fastest: the op behind it chooses by shape."""

from __future__ import annotations

import torch
from torch.fx import Graph

from ..ops.attention import attention
from .canonicalise import sdpa
from .graph import calls, insert_as, replace, value


def fuse_attention(graph: Graph) -> int:
    """Each ``scaled_dot_product_attention`` without dropout becomes the op ``attention``."""
    fused = 0
    for node in list(graph.nodes):
        if calls(node, sdpa) and node.args[4] == 0 and value(node).dim() == 4:
            query, key, val, mask, _, causal, scale = node.args
            replace(node, insert_as(node, _tokens_inside(value(node)), attention, query, key, val, mask, causal, scale))
            fused += 1
    return fused


def _tokens_inside(out: torch.Tensor) -> torch.Tensor:
    """A meta tensor like ``out`` [B, H, L, D] as the op lays it out."""
    return out.new_empty(out.transpose(1, 2).shape).transpose(1, 2)
