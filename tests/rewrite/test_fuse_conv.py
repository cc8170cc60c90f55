"""Convolutions with their epilogue, 1x1 convolutions as matrix products, and NHWC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.rewrite.passes.channels_last import channels_last
from sfast_core.weights import CHANNELS_LAST
from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[..., Any]
IMAGE, VECTOR = (2, 4, 6, 5), (2, 8)


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        conv=nn.Conv2d(4, 8, 3, padding=1),
        conv2=nn.Conv2d(8, 8, 3, padding=1, bias=False),
        point=nn.Conv2d(4, 8, 1),
        norm=nn.GroupNorm(2, 8),
        emb=nn.Linear(8, 8),
    )


# name: (forward of an image and a vector, [(act, residual, channel_add) of each op], sums and SiLUs left)
CONVOLUTIONS: dict[str, tuple[Function, list[tuple[str, bool, bool]], int, int]] = {
    "alone": (lambda net, x, e: net.conv(x), [("none", False, False)], 0, 0),
    "with SiLU": (lambda net, x, e: F.silu(net.conv(x)), [("silu", False, False)], 0, 0),
    "with a vector": (lambda net, x, e: net.conv(x) + net.emb(e)[:, :, None, None], [("none", False, True)], 0, 0),
    "with a vector before it": (
        lambda net, x, e: net.emb(e)[..., None, None] + net.conv(x),
        [("none", False, True)],
        0,
        0,
    ),
    "with a residual": (
        lambda net, x, e: (lambda y: y + net.conv2(y))(net.conv(x)),
        [("none", False, False), ("none", True, False)],
        0,
        0,
    ),
    "with all": (
        lambda net, x, e: F.silu(net.conv2(net.conv(x)) + e[:, :, None, None] + x.repeat(1, 2, 1, 1)),
        [("none", False, False), ("silu", True, True)],
        0,
        0,
    ),
    "two in one sum": (
        lambda net, x, e: net.conv(x) + net.conv(x.flip(0)),
        [("none", False, False), ("none", True, False)],
        0,
        0,
    ),
    "used twice": (lambda net, x, e: (lambda y: F.silu(y) * y)(net.conv(x)), [("none", False, False)], 0, 1),
    "added to itself": (lambda net, x, e: (lambda y: y + y)(net.conv(x)), [("none", False, False)], 1, 0),
    "SiLU before the sum": (
        lambda net, x, e: F.silu(net.conv(x)) + e[:, :, None, None],
        [("silu", False, False)],
        1,
        0,
    ),
    "a number": (lambda net, x, e: net.conv(x) + 1.5, [("none", False, False)], 1, 0),
    "a residual that broadcasts": (lambda net, x, e: net.conv(x) + x[:1, :1], [("none", False, False)], 1, 0),
    "a residual in another dtype": (
        lambda net, x, e: net.conv(x) + net.conv(x.flip(0)).half(),
        [("none", False, False)] * 2,
        1,
        0,
    ),
    "a scaled residual": (
        lambda net, x, e: torch.add(net.conv(x), x.repeat(1, 2, 1, 1), alpha=2),
        [("none", False, False)],
        1,
        0,
    ),
    "a sum that grows": (lambda net, x, e: net.conv(x[:1]) + x.repeat(1, 2, 1, 1), [("none", False, False)], 1, 0),
    "another activation": (lambda net, x, e: F.gelu(net.conv(x)), [("none", False, False)], 0, 0),
}


@pytest.mark.parametrize("name", CONVOLUTIONS)
def test_a_convolution_takes_what_only_it_feeds(name: str) -> None:
    function, expected, sums, silus = CONVOLUTIONS[name]
    found, graph = rewritten("fuse_conv_act", build(function), torch.randn(IMAGE), torch.randn(VECTOR))
    nodes = [node for node in graph.nodes if node.target is conv2d_act]
    assert found == len(nodes) and count(graph, F.conv2d) == 0
    assert [(node.args[8], node.args[7] is not None, node.args[9] is not None) for node in nodes] == expected
    assert (count(graph, torch.add), count(graph, F.silu)) == (sums, silus)


LEFT: dict[str, Function] = {
    "one image": lambda net, x: F.silu(net.conv(x[0])),
    "padding in words": lambda net, x: F.silu(F.conv2d(x, net.conv.weight, padding="same")),
    "one dimension": lambda net, x: F.silu(F.conv1d(x[..., 0], net.conv.weight[..., 0])),
}


@pytest.mark.parametrize("name", LEFT)
def test_what_the_op_does_not_mean_stays(name: str) -> None:
    found, graph = rewritten("fuse_conv_act", build(LEFT[name]), torch.randn(IMAGE))
    assert found == 0 and count(graph, F.silu) == 1 and count(graph, conv2d_act) == 0


# name: (a convolution of 4 channels, whether it is a matrix product)
POINTWISE: dict[str, tuple[Callable[[], nn.Module], bool]] = {
    "1x1": (lambda: nn.Conv2d(4, 8, 1), True),
    "1x1 without a bias": (lambda: nn.Conv2d(4, 8, 1, bias=False), True),
    "1x1 with lists": (lambda: nn.Conv2d(4, 8, (1, 1), stride=(1, 1), padding=(0, 0)), True),
    "1x1, dilated": (lambda: nn.Conv2d(4, 8, 1, dilation=3), True),
    "1x1 in words": (lambda: nn.Conv2d(4, 8, 1, padding="valid"), False),
    "3x3": (lambda: nn.Conv2d(4, 8, 3), False),
    "1x3": (lambda: nn.Conv2d(4, 8, (1, 3)), False),
    "stride": (lambda: nn.Conv2d(4, 8, 1, stride=2), False),
    "padding": (lambda: nn.Conv2d(4, 8, 1, padding=1), False),
    "groups": (lambda: nn.Conv2d(4, 8, 1, groups=2), False),
}


@pytest.mark.parametrize("name", POINTWISE)
def test_a_1x1_convolution_is_a_matrix_product(name: str) -> None:
    make, product = POINTWISE[name]
    found, graph = rewritten(
        "convolution_as_linear", Forward(lambda net, x: net.conv(x) + 1, conv=make()), torch.randn(IMAGE)
    )
    assert (found, count(graph, F.linear), count(graph, F.conv2d)) == ((1, 1, 0) if product else (0, 0, 1))


def test_an_image_recorded_in_nchw_is_told_as_a_matrix() -> None:
    """With channels innermost, as images lie when the graph runs, its tokens are dense: kernels that need that must not
    refuse it.
    """
    _, graph = rewritten(
        "convolution_as_linear", Forward(lambda net, x: net.conv(x) + 1, conv=nn.Conv2d(4, 8, 1)), torch.randn(IMAGE)
    )
    (product,) = [node for node in graph.nodes if node.target is F.linear]
    assert product.args[0].meta["val"].is_contiguous()


def test_no_image_of_one_is_a_matrix_product() -> None:
    found, _ = rewritten(
        "convolution_as_linear", Forward(lambda net, x: net.conv(x[0]), conv=nn.Conv2d(4, 8, 1)), torch.randn(IMAGE)
    )
    assert found == 0


def test_only_what_is_not_an_image_already_is_turned() -> None:
    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = F.silu(net.norm(net.conv(x)))
        return net.conv2(y) + net.norm(torch.cat([y, y], dim=1)[:, ::2])

    found, graph = rewritten("images_channels_last", build(function), torch.randn(IMAGE))
    turned = [node.args[0] for node in graph.nodes if node.target is channels_last]
    assert found == 2 and [node.op == "placeholder" for node in turned] == [True, False]
    assert count(graph, conv2d_act, group_norm_act) == 4


def test_convolution_weights_are_asked_for_channels_last() -> None:
    net = build(lambda net, x: net.conv2(net.conv(x)) + F.conv2d(x, net.conv.weight.flip(0), padding=1) + net.point(x))
    found, graph = rewritten("convolutions_channels_last", net, torch.randn(IMAGE))
    wanted = {
        str(node.meta["source"])
        for node in graph.nodes
        if "source" in node.meta and node.meta["source"].layout == CHANNELS_LAST
    }
    assert found == 1 and wanted == {"conv2.weight channels_last"}  # conv's is read otherwise too, point's is 1x1


def test_a_tied_convolution_weight_stays_as_it_lies() -> None:
    net = build(lambda net, x: net.conv2(net.conv(x)))
    net.other = nn.Conv2d(8, 8, 3)
    net.other.weight = net.conv2.weight
    found, _ = rewritten("convolutions_channels_last", net, torch.randn(IMAGE))
    assert found == 1 and net.other.weight is net.conv2.weight and net.conv2.weight.is_contiguous()
