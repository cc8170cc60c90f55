"""Norms and rotations of heads, and what a graph of these becomes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from sfast_core.ops.norm_rope import norm_rope
from tests.models import Forward
from tests.tracing import rewritten

B, H, L, L2, D = 2, 3, 5, 4, 8


def fused(
    way: Callable[..., Any],
    *inputs: torch.Tensor,
    has_impl: bool = True,
    dtype: torch.dtype = torch.float32,
    **layers: nn.Module,
) -> tuple[int, torch.fx.Graph, list[Any]]:
    module = Forward(
        lambda net, *xs: way(net, *xs),
        **(layers or {"norm": nn.RMSNorm(D, eps=1e-6), "other": nn.RMSNorm(D, eps=1e-6)}),
    )
    for norm in (module.norm, module.other):
        nn.init.normal_(norm.weight, 1.0, 0.3)
    inputs = tuple(x.to(dtype) if x.dim() == 4 else x for x in inputs)
    found, graph = rewritten("fuse_norm_rope", module.to(dtype), *inputs, has_impl=lambda *_: has_impl)
    return found, graph, [node for node in graph.nodes if node.target is norm_rope]
