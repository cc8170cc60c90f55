"""A doubled image and the 3x3 convolution of it as one op: what is that, what only looks like it, and in which layout
it runs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.ops.upsample_conv2d import upsample_conv2d
from sfast_core.rewrite.passes.channels_last import channels_last
from sfast_core.weights import CHANNELS_LAST
from tests.models import Forward, diffusers_unet
from tests.tracing import count, rewritten

Function = Callable[..., Any]
IMAGE = (2, 4, 6, 5)


def build(function: Function, **conv: Any) -> Forward:
    torch.manual_seed(0)
    arguments = {"kernel_size": 3, "padding": 1, **conv}
    return Forward(
        function, conv=nn.Conv2d(4, 8, **arguments), other=nn.Conv2d(8, 4, 3, padding=1), norm=nn.GroupNorm(2, 4)
    )


def resized(*args: Any, **kwargs: Any) -> Function:
    """The convolution of an interpolated image."""
    return lambda net, x: net.conv(F.interpolate(x, *args, **kwargs))


DOUBLED: dict[str, Function] = {
    "a factor, as diffusers says it": resized(scale_factor=2.0, mode="nearest"),
    "a size, as ComfyUI says it": lambda net, x: net.conv(
        F.interpolate(x, size=[x.shape[2] * 2, x.shape[3] * 2], mode="nearest")
    ),
    "factors, as ComfyUI's decoder says it": resized(scale_factor=(2.0,) * 2, mode="nearest"),
    "a size of another tensor": lambda net, x: net.conv(F.interpolate(x, x.repeat(1, 1, 2, 2).shape[2:])),
    "an integer": resized(scale_factor=2),
    "without a mode": resized(None, 2.0),
    "all in order": resized(None, [2.0, 2.0], "nearest", None, False, False),
    "the module": lambda net, x: net.conv(nn.Upsample(scale_factor=2)(x)),
    "nearest-exact": resized(scale_factor=2.0, mode="nearest-exact"),
    "a factor that is computed again": resized(scale_factor=2.1, recompute_scale_factor=True),
    "a copy between them": lambda net, x: net.conv(F.interpolate(x, scale_factor=2.0).contiguous().to(x.dtype)),
    "the function": lambda net, x: F.conv2d(F.interpolate(x, scale_factor=2), net.conv.weight, padding=1),
    "a computed weight": lambda net, x: F.conv2d(
        F.interpolate(x, scale_factor=2), net.conv.weight * 2, net.conv.bias, padding=(1, 1)
    ),
    "SiLU around it": lambda net, x: F.silu(net.conv(F.interpolate(F.silu(x), scale_factor=2))),
}


@pytest.mark.parametrize("name", DOUBLED)
def test_a_doubled_image_and_its_convolution_are_one_op(name: str) -> None:
    found, graph = rewritten("fuse_upsample_conv", build(DOUBLED[name]), torch.randn(IMAGE))
    assert (found, count(graph, upsample_conv2d), count(graph, F.interpolate, F.conv2d)) == (1, 1, 0)
    (node,) = [node for node in graph.nodes if node.target is upsample_conv2d]
    assert len(node.args) == 3 and (node.args[2] is None) == (name == "the function")


# What is doubled before it is rounded to bfloat16 for the convolution, and whether it is that: rounded before, or not.
WIDE: dict[str, tuple[Function, torch.dtype, bool]] = {
    "as diffusers' Wan says it": (torch.Tensor.float, torch.bfloat16, True),
    "in more digits": (lambda x: x, torch.float32, False),
    "in other digits": (lambda x: x.half().float(), torch.float32, False),
}


@pytest.mark.parametrize("name", WIDE)
def test_an_image_that_is_doubled_in_float32(name: str) -> None:
    widened, dtype, fused = WIDE[name]
    net = build(lambda net, x: net.conv(F.interpolate(widened(x), scale_factor=2.0, mode="nearest-exact").bfloat16()))
    found, graph = rewritten("fuse_upsample_conv", net.bfloat16(), torch.randn(IMAGE, dtype=dtype))
    assert (found, count(graph, upsample_conv2d), count(graph, F.interpolate)) == (fused, fused, not fused)


# The arguments of a convolution of four channels, or a forward of its own.
NEAR_MISSES: dict[str, tuple[Function, dict[str, Any]]] = {
    "three times": (resized(scale_factor=3), {}),
    "twice in one direction": (resized(scale_factor=(2.0, 1.0)), {}),
    "half": (resized(scale_factor=0.5), {}),
    "a size that is not twice": (resized(size=(12, 11)), {}),
    "nearest-exact to an odd size": (resized(size=(11, 9), mode="nearest-exact"), {}),
    "a factor near 2 that gives twice the size": (resized(scale_factor=2.1), {}),
    "bilinear": (resized(scale_factor=2, mode="bilinear"), {}),
    "bicubic": (resized(scale_factor=2, mode="bicubic"), {}),
    "area": (resized(scale_factor=2, mode="area"), {}),
    "stride 2": (resized(scale_factor=2), {"stride": 2}),
    "stride 2 in one direction": (resized(scale_factor=2), {"stride": (1, 2)}),
    "1x1": (resized(scale_factor=2), {"kernel_size": 1, "padding": 0}),
    "5x5": (resized(scale_factor=2), {"kernel_size": 5, "padding": 2}),
    "3x1": (resized(scale_factor=2), {"kernel_size": (3, 1), "padding": (1, 0)}),
    "no padding": (resized(scale_factor=2), {"padding": 0}),
    "padding in one direction": (resized(scale_factor=2), {"padding": (0, 1)}),
    "padding in words": (resized(scale_factor=2), {"padding": "same"}),
    "padding of another kind": (resized(scale_factor=2), {"padding_mode": "reflect"}),
    "dilated": (resized(scale_factor=2), {"dilation": 2, "padding": 2}),
    "groups": (resized(scale_factor=2), {"groups": 2}),
    "another user of the doubled image": (
        lambda net, x: (lambda y: net.conv(y).mean(1, keepdim=True) + y)(F.interpolate(x, scale_factor=2)),
        {},
    ),
    "two convolutions": (
        lambda net, x: (lambda y: net.conv(y) + net.conv(y.flip(0)))(F.interpolate(x, scale_factor=2)),
        {},
    ),
    "a result of its own": (lambda net, x: (lambda y: (net.conv(y), y))(F.interpolate(x, scale_factor=2)), {}),
    "something between them": (lambda net, x: net.conv(F.silu(F.interpolate(x, scale_factor=2))), {}),
    "one image": (lambda net, x: net.conv(F.interpolate(x, scale_factor=2)[0]), {}),
    "one dimension": (
        lambda net, x: F.conv1d(F.interpolate(x[..., 0], scale_factor=2), net.conv.weight[..., 0], padding=1),
        {},
    ),
    "the other way round": (lambda net, x: F.interpolate(net.conv(x), scale_factor=2), {}),
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_only_looks_like_it_stays(name: str) -> None:
    function, conv = NEAR_MISSES[name]
    found, graph = rewritten("fuse_upsample_conv", build(function, **conv), torch.randn(IMAGE))
    assert (found, count(graph, upsample_conv2d), count(graph, F.interpolate)) == (0, 0, 1)


def test_a_convolution_alone_goes_its_usual_way() -> None:
    net = build(lambda net, x: net.conv(F.interpolate(net.other(net.conv(x)), scale_factor=2)))
    found, graph = rewritten("fuse_conv_act", net, torch.randn(IMAGE))
    assert found == 2 and (count(graph, conv2d_act), count(graph, upsample_conv2d)) == (2, 1)


def test_it_is_an_image_op() -> None:
    """Only what comes from elsewhere is turned, and its own result counts as turned."""

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        y = net.norm(net.other(net.conv(F.interpolate(x, scale_factor=2))))
        return net.conv(F.interpolate(torch.cat([y, y], dim=1)[:, ::2], scale_factor=2))

    found, graph = rewritten("images_channels_last", build(function), torch.randn(IMAGE))
    turned = [node.args[0] for node in graph.nodes if node.target is channels_last]
    assert found == 2 and [node.op == "placeholder" for node in turned] == [True, False]
    assert count(graph, upsample_conv2d) == 2 and count(graph, conv2d_act, group_norm_act) == 2


def test_its_weight_is_asked_for_in_channels_last() -> None:
    net = build(lambda net, x: net.conv(F.interpolate(net.other(net.conv(x)), scale_factor=2)))
    found, graph = rewritten("convolutions_channels_last", net, torch.randn(IMAGE))
    wanted = {
        str(node.meta["source"])
        for node in graph.nodes
        if "source" in node.meta and node.meta["source"].layout == CHANNELS_LAST
    }
    assert found == 2 and wanted == {"conv.weight channels_last", "other.weight channels_last"}
    assert net.conv.weight.is_contiguous(memory_format=torch.channels_last)


def test_a_weight_that_is_read_otherwise_too_stays_as_it_lies() -> None:
    net = build(lambda net, x: net.conv(F.interpolate(x, scale_factor=2)) + net.conv.weight.sum())
    found, _ = rewritten("convolutions_channels_last", net, torch.randn(IMAGE))
    assert found == 0 and net.conv.weight.is_contiguous()


@pytest.mark.parametrize("size, fused", [((8, 8), 1), ((6, 10), 1), ((7, 9), 0)], ids=str)
def test_in_a_diffusers_unet(size: tuple[int, int], fused: int) -> None:
    """At an odd size it is scaled to the size of the skip connection instead."""
    torch.manual_seed(0)
    unet = diffusers_unet()
    net = Forward(lambda net, x, t, context: net.unet(x, t, context, return_dict=False), unet=unet)
    found, graph = rewritten(
        "fuse_upsample_conv", net, torch.randn(2, 4, *size), torch.tensor([3, 700]), torch.randn(2, 5, 12)
    )
    assert (found, count(graph, upsample_conv2d), count(graph, F.interpolate)) == (fused, fused, 1 - fused)
