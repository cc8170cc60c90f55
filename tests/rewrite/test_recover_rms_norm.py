"""RMSNorms that are written out, and what only looks like one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.models import Forward
from tests.tracing import count, rewritten

C = 16
Way = Callable[..., Any]


def _root(x: torch.Tensor, eps: float = 1e-6) -> torch.Tensor:
    return torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + eps)


def _llama(net: Any, x: torch.Tensor) -> torch.Tensor:
    """As transformers' models do, T5 among them."""
    wide = x.to(torch.float32)
    return net.weight * (wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + 1e-6)).to(x.dtype)


WAYS: dict[str, tuple[Way, bool]] = {
    "diffusers": (lambda net, x: (x * _root(x)).to(x.dtype) * net.weight, True),
    "transformers": (_llama, True),
    "Gemma": (lambda net, x: (x.float() * _root(x) * (1.0 + net.weight.float())).type_as(x), True),
    "T5 in ComfyUI, in the tokens' dtype": (
        lambda net, x: net.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)),
        True,
    ),
    "without a weight": (lambda net, x: (x * _root(x)).to(x.dtype), False),
    "squares as products": (
        lambda net, x: (x * torch.rsqrt((x.float() * x.float()).mean(dim=-1, keepdim=True) + 1e-6)).to(x.dtype),
        False,
    ),
    "in float32 to the end": (lambda net, x: x.float() * _root(x), False),
}


def _recovered(way: Way, dtype: torch.dtype) -> tuple[int, torch.fx.Graph]:
    module = Forward(way)
    module.register_parameter("weight", nn.Parameter(torch.randn(C) * 0.3 + 1))
    return rewritten("recover_rms_norm", module.to(dtype), torch.randn(2, 5, C, dtype=dtype))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("name", WAYS)
def test_a_norm_is_one_call(name: str, dtype: torch.dtype) -> None:
    way, weighted = WAYS[name]
    found, graph = _recovered(way, dtype)
    (norm,) = (node for node in graph.nodes if node.target is F.rms_norm)
    assert found == 1 and norm.args[1] == (C,) and norm.args[3] == 1e-6 and (norm.args[2] is not None) == weighted
    assert count(graph, torch.rsqrt, "rsqrt", "pow", "mean", torch.mul) == 0


STAY: dict[str, Way] = {
    "the mean of more": lambda net, x: x * torch.rsqrt(x.float().pow(2).mean((-2, -1), keepdim=True) + 1e-6),
    "of another dimension": lambda net, x: x * torch.rsqrt(x.float().pow(2).mean(1, keepdim=True) + 1e-6),
    "not kept": lambda net, x: x * torch.rsqrt(x.float().pow(2).mean(-1) + 1e-6)[..., None],
    "cubes": lambda net, x: x * torch.rsqrt(x.float().abs().pow(3).mean(-1, keepdim=True) + 1e-6),
    "of something else": lambda net, x: (x + 1) * _root(x),
    "an eps that is a tensor": lambda net, x: (
        x * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + net.weight[:1].float().abs())
    ),
    "the root is read elsewhere": lambda net, x: (lambda r: (x * r, r))(_root(x)),
}


@pytest.mark.parametrize("name", STAY)
def test_what_only_looks_like_it_stays(name: str) -> None:
    found, graph = _recovered(STAY[name], torch.float32)
    assert found == 0 and count(graph, F.rms_norm) == 0 and count(graph, torch.rsqrt, "rsqrt") == 1
