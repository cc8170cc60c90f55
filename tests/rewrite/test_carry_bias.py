"""Biases that go to a pass which is there anyway."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.linear import linear
from sfast_core.ops.norm_pad_video import norm_pad_video
from sfast_core.rewrite.graph import calls_of, named
from tests.models import Forward
from tests.tracing import linears, rewritten

TOKENS = (2, 5, 8)
Function = Callable[..., Any]


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function, lin=nn.Linear(8, 8), bare=nn.Linear(8, 8, bias=False), out=nn.Linear(8, 8), norm=nn.LayerNorm(8)
    )


def last_layer(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """The end of a transformer: a sum for a LayerNorm, and a linear layer behind that whose result is added to the
    sum.
    """
    total = net.lin(x) + y
    result: torch.Tensor = net.out(net.norm(total).sigmoid()) + total
    return result


def two_layers(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    total = net.lin(x) + y
    total = net.out(net.norm(total).sigmoid()) + total
    return net.bare(net.norm(total)) + total


# name: (forward, biases that are carried)
FORWARDS: dict[str, tuple[Function, int]] = {
    "the last layer": (last_layer, 1),
    "behind two sums": (lambda net, x, y: (lambda s: net.out(net.norm(s).tanh()) + s)(x * 2 + y), 1),
    "a sum that a LayerNorm takes": (two_layers, 0),
    "without a bias": (lambda net, x, y: (lambda s: net.bare(net.norm(s).tanh()) + s)(net.lin(x) + y), 0),
    "a sum that others read": (lambda net, x, y: (lambda s: (net.out(net.norm(s).tanh()) + s) * s)(net.lin(x) + y), 0),
    "a sum of two linear layers": (
        lambda net, x, y: (lambda s: net.out(net.norm(s).tanh()) + net.lin(x * 2) + s)(x + y),
        0,
    ),
    "a computed bias": (
        lambda net, x, y: (lambda s: nn.functional.linear(net.norm(s).tanh(), net.out.weight, net.out.bias * 2) + s)(
            x + y
        ),
        0,
    ),
    "a layer of the sum itself": (lambda net, x, y: (lambda s: (net.out(s) + s, net.norm(s)))(x + y), 0),
    "what was normalised": (lambda net, x, y: (lambda n: net.out(n.tanh()) + n)(net.norm(x + y)), 0),
    "a norm without a sum": (lambda net, x, y: (lambda s: net.out(net.norm(s).tanh()) + s)(x.sigmoid()) + y, 0),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_the_pass_that_sums_adds_the_bias(name: str) -> None:
    function, carried = FORWARDS[name]
    found, graph = rewritten(
        "carry_bias", build(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=lambda *_: True
    )
    taken = [node.args[6].name for node in graph.nodes if node.target is add_layer_norm and len(node.args) == 7]
    assert (found, taken) == (carried, ["weight_out_bias"] * carried)
    assert all(node.args[2] is None or not carried for node in linears(graph, "residual"))


@pytest.mark.parametrize("op", [add_layer_norm, linear])
def test_without_an_impl_it_stays(op: Any) -> None:
    def has_impl(asked: Any, *args: Any) -> bool:
        return asked is not op or (op is add_layer_norm and len(args) < 7)

    found, graph = rewritten(
        "carry_bias", build(last_layer), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=has_impl
    )
    assert found == 0 and all(len(node.args) < 7 for node in graph.nodes if node.target is add_layer_norm)


def normed(x: torch.Tensor) -> torch.Tensor:
    return F.silu(x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8))


# name: (forward of a video, biases that norms take)
VIDEOS: dict[str, tuple[Function, int]] = {
    "behind a convolution": (lambda net, x: net.after(normed(net.conv(x))), 1),
    "behind two": (lambda net, x: net.after(normed(net.after(normed(net.conv(x))))), 2),
    "with its edges": (lambda net, x: net.after(F.pad(normed(net.conv(x)), (1, 1, 1, 1, 2, 0), mode="replicate")), 1),
    "edges alone": (lambda net, x: net.after(F.pad(net.conv(x), (1, 1, 1, 1, 2, 0), mode="replicate")), 1),
    "a convolution without": (lambda net, x: net.after(normed(net.none(x))), 0),
    "read by others": (lambda net, x: (lambda h: net.after(normed(h)) + h)(net.conv(x)), 0),
    "behind a sum": (lambda net, x: net.after(normed(net.conv(x) + x)), 0),
    "behind SiLU": (lambda net, x: net.after(normed(F.silu(net.conv(x)))), 0),
    "a computed bias": (
        lambda net, x: net.after(normed(F.conv3d(x, net.conv.weight, net.conv.bias * 2, padding=1))),
        0,
    ),
}


def of_videos(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        conv=nn.Conv3d(8, 8, 3, padding=1),
        after=nn.Conv3d(8, 8, 3, padding=1),
        none=nn.Conv3d(8, 8, 3, padding=1, bias=False),
    )


@pytest.mark.parametrize("name", VIDEOS)
def test_a_norm_adds_the_bias_of_the_convolution_in_front(name: str) -> None:
    function, carried = VIDEOS[name]
    found, graph = rewritten("carry_bias", of_videos(function), torch.randn(1, 8, 3, 4, 5), has_impl=lambda *_: True)
    taken = [named(node) for node in calls_of(graph, norm_pad_video) if named(node).bias is not None]
    assert (found, len(taken)) == (carried, carried)
    assert all(named(call.x).bias is None for call in taken)


def test_a_norm_that_cant_leaves_it() -> None:
    def has_impl(asked: Any, *args: Any) -> bool:
        return asked is not norm_pad_video or len(args) < 11

    net = of_videos(VIDEOS["behind a convolution"][0])
    found, graph = rewritten("carry_bias", net, torch.randn(1, 8, 3, 4, 5), has_impl=has_impl)
    assert found == 0 and all(named(node).bias is not None for node in calls_of(graph, conv2d_act))
