"""GroupNorm and LayerNorm with what stands next to them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.add_layer_norm import add_layer_norm
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.ops.linear import linear
from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[..., Any]
IMAGE, VECTOR, TOKENS = (2, 8, 4, 6), (2, 8), (2, 5, 8)

# name: (forward of an image x and a vector e per sample, its act, whether the sum is fused, SiLUs and sums left)
GROUP_NORMS: dict[str, tuple[Function, str, bool, int, int]] = {
    "alone": (lambda net, x, e: net.norm(x), "none", False, 0, 0),
    "with SiLU": (lambda net, x, e: F.silu(net.norm(x)), "silu", False, 0, 0),
    "with x * sigmoid(x)": (lambda net, x, e: (lambda y: y * torch.sigmoid(y))(net.norm(x)), "silu", False, 0, 0),
    "with a sum": (lambda net, x, e: F.silu(net.norm(x + e[:, :, None, None])), "silu", True, 0, 0),
    "with a sum, the vector first": (lambda net, x, e: net.norm(e[..., None, None] + x), "none", True, 0, 0),
    "with one vector for all": (lambda net, x, e: net.norm(x + e[:1, :, None, None]), "none", True, 0, 0),
    "pixels in a row": (lambda net, x, e: F.silu(net.norm(x.flatten(2)).transpose(1, 2)), "silu", False, 0, 0),
    "without weights": (lambda net, x, e: F.silu(F.group_norm(x, 4)), "silu", False, 0, 0),
    "its result used twice": (lambda net, x, e: (lambda y: F.silu(y) + y)(net.norm(x)), "none", False, 1, 1),
    "SiLU used twice": (lambda net, x, e: (lambda y: y * y)(F.silu(net.norm(x))), "silu", False, 0, 0),
    "another activation": (lambda net, x, e: F.gelu(net.norm(x)), "none", False, 0, 0),
    "the sum used elsewhere": (
        lambda net, x, e: (lambda y: net.norm(y) * y)(x + e[:, :, None, None]),
        "none",
        False,
        0,
        1,
    ),
    "a sum of two images": (lambda net, x, e: net.norm(x + x.flip(0)), "none", False, 0, 1),
    "a sum with one value per sample": (lambda net, x, e: net.norm(x + e[:, :1, None, None]), "none", False, 0, 1),
    "a sum in another dtype": (lambda net, x, e: net.norm(x + e.half()[:, :, None, None]), "none", False, 0, 1),
    "a row of values": (lambda net, x, e: net.norm(x + x[:, :, :1]), "none", False, 0, 1),
}


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_group_norm(name: str) -> None:
    function, act, fused_sum, silus, sums = GROUP_NORMS[name]
    net = Forward(function, norm=nn.GroupNorm(4, 8))
    nn.init.normal_(net.norm.weight)
    found, graph = rewritten("fuse_group_norm_act", net, torch.randn(IMAGE), torch.randn(VECTOR))
    (node,) = [node for node in graph.nodes if node.target is group_norm_act]
    assert found == 1 and node.args[5] == act and (node.args[6] is not None) == fused_sum
    assert (count(graph, F.group_norm), count(graph, F.silu), count(graph, torch.add)) == (0, silus, sums)


@pytest.mark.parametrize("shape", [(2, 8), (2, 8, 5), (2, 8, 2, 3, 4)])
def test_group_norm_of_something_else_than_images_stays(shape: tuple[int, ...]) -> None:
    found, graph = rewritten(
        "fuse_group_norm_act", Forward(lambda net, x: F.silu(net.norm(x)), norm=nn.GroupNorm(4, 8)), torch.randn(shape)
    )
    assert found == 0 and count(graph, F.group_norm) == 1 and count(graph, F.silu) == 1


def residual_stream(net: Any, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    x = y + x
    x = net.norm(x) + x
    return net.norm2(x) + x


# name: (forward of two token sequences, how many fused, how many of these with their sum, sums left)
LAYER_NORMS: dict[str, tuple[Function, int, int, int]] = {
    "alone": (lambda net, x, y: net.norm(x), 1, 0, 0),
    "of a sum": (lambda net, x, y: net.norm(x + y), 1, 1, 0),
    "of a sum used elsewhere": (lambda net, x, y: (lambda s: net.norm(s) * s)(x + y), 1, 1, 0),
    "two in a stream": (residual_stream, 2, 2, 1),
    "two of one sum": (lambda net, x, y: (lambda s: net.norm(s) * net.norm2(s))(x + y), 2, 1, 0),
    "without weights": (lambda net, x, y: F.layer_norm(x + y, (8,)), 1, 1, 0),
    "of a sum with a number": (lambda net, x, y: net.norm(x + 1.0), 1, 0, 1),
    "of a sum that broadcasts": (lambda net, x, y: net.norm(x + y[:, :1]), 1, 0, 1),
    "of a sum in another dtype": (lambda net, x, y: net.norm(x + y.half()), 1, 0, 1),
    "of a sum with a factor": (lambda net, x, y: net.norm(torch.add(x, y, alpha=2)), 1, 0, 1),
    "of a product": (lambda net, x, y: net.norm(x * y), 1, 0, 0),
    "with a weight computed behind the sum": (
        lambda net, x, y: (lambda s: F.layer_norm(s, (8,), s[0, 0]))(x + y),
        1,
        0,
        1,
    ),
    "over two dimensions": (lambda net, x, y: F.layer_norm(x + y, (5, 8)), 0, 0, 1),
}


@pytest.mark.parametrize("name", LAYER_NORMS)
def test_layer_norm(name: str) -> None:
    function, fused, with_sum, sums = LAYER_NORMS[name]
    net = Forward(function, norm=nn.LayerNorm(8), norm2=nn.LayerNorm(8))
    nn.init.normal_(net.norm.weight)
    found, graph = rewritten("fuse_add_layer_norm", net, torch.randn(TOKENS), torch.randn(TOKENS))
    nodes = [node for node in graph.nodes if node.target is add_layer_norm]
    assert found == len(nodes) == fused and sum(node.args[1] is not None for node in nodes) == with_sum
    assert count(graph, F.layer_norm) == (0 if fused else 1) and count(graph, torch.add) == sums


def always(*_: object) -> bool:
    return True


# name: (forward of two token sequences, how many linear layers' biases the norms take, how many layers keep theirs)
BIASES: dict[str, tuple[Function, int, int]] = {
    "added to the residual": (lambda net, x, y: net.norm(net.layer(x) + y), 1, 0),
    "the residual added to it": (lambda net, x, y: net.norm(y + net.layer(x)), 1, 0),
    "two layers": (lambda net, x, y: net.norm(net.layer(x) + net.layer2(y)), 1, 1),
    "and the sum used elsewhere": (lambda net, x, y: (lambda s: net.norm(s) * s)(net.layer(x) + y), 1, 0),
    "added to its own input": (lambda net, x, y: net.norm(net.layer(x) + x), 1, 0),
    "without a bias": (lambda net, x, y: net.norm(net.plain(x) + y), 0, 0),
    "read elsewhere": (lambda net, x, y: (lambda r: net.norm(r + y) * r)(net.layer(x)), 0, 1),
    "with a sibling": (lambda net, x, y: net.norm(net.layer(x) + y) * net.layer2(x), 0, 2),
    "behind an activation": (lambda net, x, y: net.norm(net.layer(x).relu() + y), 0, 1),
    "without a residual": (lambda net, x, y: net.norm(net.layer(x)), 0, 1),
    "added to itself": (lambda net, x, y: (lambda r: net.norm(r + r))(net.layer(x)), 0, 1),
}


def _with_layers(function: Function) -> Forward:
    net = Forward(
        function, norm=nn.LayerNorm(8), layer=nn.Linear(8, 8), layer2=nn.Linear(8, 8), plain=nn.Linear(8, 8, bias=False)
    )
    nn.init.normal_(net.norm.weight)
    return net


@pytest.mark.parametrize("name", BIASES)
def test_a_norm_takes_the_bias_of_the_layer_before_it(name: str) -> None:
    function, taken, kept = BIASES[name]
    _, graph = rewritten(
        "fuse_add_layer_norm", _with_layers(function), torch.randn(TOKENS), torch.randn(TOKENS), has_impl=always
    )
    assert sum(len(node.args) == 6 for node in graph.nodes if node.target is add_layer_norm) == taken
    assert sum(node.args[2] is not None for node in graph.nodes if node.target in (F.linear, linear)) == kept


def test_without_a_kernel_the_layer_keeps_its_bias() -> None:
    function, taken, _ = BIASES["added to the residual"]
    _, graph = rewritten("fuse_add_layer_norm", _with_layers(function), torch.randn(TOKENS), torch.randn(TOKENS))
    assert taken and all(len(node.args) == 5 for node in graph.nodes if node.target is add_layer_norm)
