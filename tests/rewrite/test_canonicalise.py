"""Each operation in one spelling, whatever the model wrote."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture.functional import cast_like
from sfast_core.rewrite.graph import calls
from sfast_core.rewrite.passes.canonicalise import canonicalise
from sfast_core.rewrite.patterns import gelu, sdpa
from tests.models import Forward, UNet
from tests.tracing import count, evaluate, rewritten, trace

Function = Callable[[Any, torch.Tensor], Any]
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "lin": lambda: nn.Linear(8, 8),
    "conv": lambda: nn.Conv2d(3, 8, 3, stride=2, padding=1),
    "group": lambda: nn.GroupNorm(3, 3),
    "layer": lambda: nn.LayerNorm(8),
    "drop": lambda: nn.Dropout(),
}


def module(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(function, **{name: make() for name, make in LAYERS.items()})


SPELLINGS: dict[str, tuple[Function, Any, int]] = {
    "linear, a layer": (lambda net, x: net.lin(x), F.linear, 3),
    "linear, keywords": (lambda net, x: F.linear(x, bias=net.lin.bias, weight=net.lin.weight), F.linear, 3),
    "linear, no bias": (lambda net, x: F.linear(x, net.lin.weight), F.linear, 3),
    "conv2d, a layer": (lambda net, x: net.conv(x), F.conv2d, 7),
    "conv2d, keywords": (lambda net, x: F.conv2d(x, net.conv.weight, stride=(2, 2)), F.conv2d, 7),
    "interpolate, keywords": (lambda net, x: F.interpolate(x, scale_factor=2.0, mode="nearest"), F.interpolate, 7),
    "interpolate, a layer": (lambda net, x: nn.Upsample(size=(4, 4), mode="bilinear")(x), F.interpolate, 7),
    "group_norm, a layer": (lambda net, x: net.group(x), F.group_norm, 5),
    "group_norm, bare": (lambda net, x: F.group_norm(x, 3), F.group_norm, 5),
    "layer_norm, a layer": (lambda net, x: net.layer(x), F.layer_norm, 5),
    "layer_norm, torch's": (lambda net, x: torch.layer_norm(x, [8]), F.layer_norm, 5),
    "gelu": (lambda net, x: F.gelu(x), gelu, 2),
    "gelu, tanh": (lambda net, x: F.gelu(x, approximate="tanh"), gelu, 2),
    "silu": (lambda net, x: F.silu(x), F.silu, 1),
    "silu, in place": (lambda net, x: F.silu(x * 2, inplace=True), F.silu, 1),
    "silu, keyword": (lambda net, x: F.silu(input=x), F.silu, 1),
    "cat": (lambda net, x: torch.cat([x, x]), torch.cat, 2),
    "cat, keyword": (lambda net, x: torch.concat((x, x), dim=1), torch.cat, 2),
    "sdpa": (lambda net, x: F.scaled_dot_product_attention(x, x, x), sdpa, 7),
    "sdpa, scaled": (lambda net, x: F.scaled_dot_product_attention(x, x, value=x, scale=0.5), sdpa, 7),
    "softmax, a method": (lambda net, x: x.softmax(dim=-1), torch.softmax, 2),
    "softmax, F's": (lambda net, x: F.softmax(x, dim=1), torch.softmax, 2),
    "softmax, in a dtype": (lambda net, x: F.softmax(x.half(), dim=-1, dtype=torch.float32), torch.softmax, 2),
    "view": (lambda net, x: x.view(2, -1), torch.reshape, 2),
    "flatten, keyword": (lambda net, x: torch.flatten(x, start_dim=1), torch.reshape, 2),
    "reshape, keywords": (lambda net, x: torch.reshape(input=x, shape=(2, -1)), torch.reshape, 2),
    "unflatten": (lambda net, x: x.unflatten(-1, (2, 4)), torch.reshape, 2),
    "unsqueeze": (lambda net, x: x.unsqueeze(1), torch.reshape, 2),
    "None as index": (lambda net, x: x[:, None, ..., None], torch.reshape, 2),
    "transpose": (lambda net, x: x.transpose(1, 2), torch.permute, 2),
    "permute, keyword": (lambda net, x: torch.permute(x, dims=(0, 2, 3, 1)), torch.permute, 2),
    "movedim": (lambda net, x: x.movedim(1, -1), torch.permute, 2),
    "mT": (lambda net, x: x.mT, torch.permute, 2),
    "swapaxes": (lambda net, x: torch.swapaxes(x, 0, 1), torch.permute, 2),
    "half": (lambda net, x: x.half(), cast_like, 2),
    "to another tensor's": (lambda net, x: x.to(x.double()), cast_like, 2),
    "type": (lambda net, x: x.type(torch.float64), cast_like, 2),
    "+": (lambda net, x: x + x.sigmoid(), torch.add, 2),
    "number +": (lambda net, x: 1 + x, torch.add, 2),
    "+=": (lambda net, x: _added(x.sigmoid(), x), torch.add, 2),
    "add, alpha 1": (lambda net, x: torch.add(x, x, alpha=1), torch.add, 2),
    "number *": (lambda net, x: 2 * x, torch.mul, 2),
    "mul_": (lambda net, x: x.sigmoid().mul_(x), torch.mul, 2),
    "/": (lambda net, x: x / 3, torch.div, 2),
    "chunk, a method": (lambda net, x: x.chunk(2, -1)[0], torch.chunk, 3),
    "chunk, keywords": (lambda net, x: torch.chunk(x, chunks=2, dim=-1)[1], torch.chunk, 3),
    "split in halves": (lambda net, x: x.split(4, dim=-1)[1], torch.chunk, 3),
    "split in equal sizes": (lambda net, x: torch.split(x, [4, 4], dim=-1)[1], torch.chunk, 3),
}


def _added(y: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    y += x
    return y


@pytest.mark.parametrize("name", SPELLINGS)
def test_a_spelling_becomes_the_one(name: str) -> None:
    function, target, arguments = SPELLINGS[name]
    _, graph = rewritten("canonicalise", module(function), torch.randn(2, 3, 8, 8))
    (node,) = [node for node in graph.nodes if node.target is target]
    assert len(node.args) == arguments and not node.kwargs
    assert count(graph, target) == 1


NEAR_MISSES: dict[str, tuple[Function, Any]] = {
    "bits as another dtype": (lambda net, x: x.view(torch.int32), torch.reshape),
    "an index": (lambda net, x: x[:, 0], torch.reshape),
    "a slice": (lambda net, x: x[..., 1:], torch.reshape),
    "add, alpha": (lambda net, x: torch.add(x, x, alpha=2), torch.add),
    "div, rounded": (lambda net, x: torch.div(x, 3, rounding_mode="floor"), torch.div),
    "a number over x": (lambda net, x: 3 / (x.abs() + 9), torch.div),
    "split in unequal sizes": (lambda net, x: x.split([3, 5], dim=-1)[1], torch.chunk),
    "split with a rest": (lambda net, x: x.split(3, dim=-1)[2], torch.chunk),
    "sdpa of groups in five dimensions": (
        lambda net, x: F.scaled_dot_product_attention(x[None], x[None], x[None], enable_gqa=True),
        sdpa,
    ),
    "flip": (lambda net, x: x.flip(0), torch.permute),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_something_else_stays(name: str) -> None:
    function, target = NEAR_MISSES[name]
    _, graph = rewritten("canonicalise", module(function), torch.randn(2, 3, 8, 8))
    assert not any(calls(node, target) for node in graph.nodes)


NOTHING: dict[str, Function] = {
    "contiguous": lambda net, x: net.lin(x).contiguous(memory_format=torch.channels_last),
    "clone": lambda net, x: net.lin(x).clone(),
    "detach": lambda net, x: net.lin(x).detach(),
    "the same dtype": lambda net, x: net.lin(x).to(torch.float32),
    "type_as": lambda net, x: net.lin(x).type_as(x),
    "dropout": lambda net, x: net.drop(net.lin(x)),
    "dropout of nothing": lambda net, x: F.dropout(net.lin(x), 0.0, training=True),
}


@pytest.mark.parametrize("name", NOTHING)
def test_what_changes_no_value_goes(name: str) -> None:
    _, graph = rewritten("canonicalise", module(NOTHING[name]), torch.randn(2, 3, 8, 8))
    assert [node.target for node in graph.nodes if node.op.startswith("call")] == [F.linear]


def test_it_is_done_after_once() -> None:
    graph = trace(UNet(), *UNet.inputs()).graph
    assert canonicalise(graph) > 20
    before = [(node.op, node.target, len(node.args)) for node in graph.nodes]
    assert canonicalise(graph) == 0
    assert [(node.op, node.target, len(node.args)) for node in graph.nodes] == before


def test_a_strange_keyword_leaves_a_call_as_it_is() -> None:
    net = Forward(lambda net, x: torch.softmax(x, dim=-1, dtype=torch.float64).sum(dim=-1, keepdim=True))
    graph = trace(net, torch.randn(2, 3)).graph
    canonicalise(graph)
    x = torch.randn(2, 3)
    torch.testing.assert_close(evaluate(graph, [x])[0], net(x))
