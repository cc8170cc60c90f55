"""A residual block's last convolution and its shortcut as one op: what is that, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.conv2d_shortcut import conv2d_shortcut
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.rewrite.passes.channels_last import channels_last
from sfast_core.weights import CHANNELS_LAST
from tests.models import Forward, diffusers_unet
from tests.tracing import count, rewritten

Function = Callable[..., Any]


def always(*_: Any) -> bool:
    return True


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    convolutions = {
        "conv": nn.Conv2d(12, 6, 3, padding=1),
        "short": nn.Conv2d(12, 6, 1),
        "narrow": nn.Conv2d(12, 6, 3, padding=(1, 0)),
        "same": nn.Conv2d(12, 6, 3, padding="same"),
        "dilated": nn.Conv2d(12, 6, 3, padding=2, dilation=2),
        "strided": nn.Conv2d(12, 6, 3, padding=1, stride=2),
        "short_strided": nn.Conv2d(12, 6, 1, stride=2),
        "grouped": nn.Conv2d(12, 6, 3, padding=1, groups=2),
        "plain": nn.Conv2d(12, 6, 1, bias=False),
        "exact": nn.Conv2d(12, 6, 1).double(),
    }
    return Forward(function, norm=nn.GroupNorm(3, 12), **convolutions)


ENDS: dict[str, tuple[Function, bool]] = {
    "the shortcut last": (lambda net, x, y: net.conv(y) + net.short(x), False),
    "the shortcut first": (lambda net, x, y: net.short(x) + net.conv(y), False),
    "of one image": (lambda net, x, y: net.conv(x) + net.short(x), False),
    "paddings of 1 and 0": (lambda net, x, y: net.narrow(y) + net.short(x[..., 1:-1]), False),
    "without a bias": (lambda net, x, y: net.conv(y) + net.plain(x), False),
    "in place": (lambda net, x, y: net.conv(y).add_(net.short(x)), False),
    "of two parts": (lambda net, x, y: net.conv(y) + net.short(torch.cat([x[:, :8], y[:, :4]], 1)), True),
    "of two parts that a norm reads too": (lambda net, x, y: _block(net, torch.cat([x[:, :4], y[:, :8]], 1)), True),
    "of three parts": (lambda net, x, y: net.conv(y) + net.short(torch.cat([x[:, :4], y[:, :4], x[:, 4:8]], 1)), False),
    "of halves": (lambda net, x, y: net.conv(y) + net.short(torch.cat([x[:, :, :2], y[:, :, 2:]], 2)), False),
    "SiLU behind it": (lambda net, x, y: F.silu(net.conv(y) + net.short(x)), False),
}


def _block(net: Forward, z: torch.Tensor) -> torch.Tensor:
    return net.conv(F.silu(net.norm(z))) + net.short(z)


@pytest.mark.parametrize("name", ENDS)
def test_a_convolution_and_its_shortcut_are_one_op(name: str) -> None:
    function, parts = ENDS[name]
    found, graph = rewritten(
        "fuse_conv_shortcut", build(function), *(torch.randn(2, 12, 4, 6) for _ in range(2)), has_impl=always
    )
    assert (found, count(graph, conv2d_shortcut), count(graph, F.conv2d, torch.add)) == (1, 1, 0)
    (node,) = [node for node in graph.nodes if node.target is conv2d_shortcut]
    assert len(node.args) == (8 if parts else 7)


NEAR_MISSES: dict[str, Function] = {
    "two shortcuts": lambda net, x, y: net.plain(y) + net.short(x),
    "two convolutions": lambda net, x, y: net.conv(y) + net.conv(x),
    "a shortcut that is read elsewhere": lambda net, x, y: (s := net.short(x)) * 2 + (net.conv(y) + s),
    "a convolution that is read elsewhere": lambda net, x, y: (c := net.conv(y)) * 2 + (c + net.short(x)),
    "a difference": lambda net, x, y: net.conv(y) - net.short(x),
    "a sum with a factor": lambda net, x, y: torch.add(net.conv(y), net.short(x), alpha=2),
    "a dilated convolution": lambda net, x, y: net.dilated(y) + net.short(x),
    "a grouped convolution": lambda net, x, y: net.grouped(y) + net.short(x),
    "a convolution padded by name": lambda net, x, y: net.same(y) + net.short(x),
    "strides": lambda net, x, y: net.strided(y) + net.short_strided(x),
    "a strided convolution": lambda net, x, y: net.strided(y) + net.short(x[:, :, ::2, ::2]),
    "a shortcut of another dtype": lambda net, x, y: net.conv(y) + net.exact(x.double()),
    "a shortcut that is broadcast": lambda net, x, y: net.conv(y) + net.short(x[:, :, :1, :1]),
    "the same sum twice": lambda net, x, y: (s := net.short(x)) + s,
}


@pytest.mark.parametrize("name", NEAR_MISSES)
def test_what_is_no_block_end(name: str) -> None:
    found, graph = rewritten(
        "fuse_conv_shortcut", build(NEAR_MISSES[name]), *(torch.randn(2, 12, 4, 6) for _ in range(2)), has_impl=always
    )
    assert (found, count(graph, conv2d_shortcut)) == (0, 0)


def test_all_stays_where_a_kernel_is_missing() -> None:
    asked = []

    def has_impl(reference: Function, *args: Any) -> bool:
        asked.append((reference, [None if arg is None else tuple(getattr(arg, "shape", (arg,))) for arg in args]))
        return False

    net = build(ENDS["of two parts"][0])
    found, graph = rewritten(
        "fuse_conv_shortcut", net, torch.randn(2, 12, 4, 6), torch.randn(2, 12, 4, 6), has_impl=has_impl
    )
    assert (found, count(graph, F.conv2d)) == (0, 2)
    assert {reference for reference, _ in asked} >= {conv2d_shortcut}
    shapes = next(shapes for reference, shapes in asked if reference is conv2d_shortcut)
    assert [shapes[i] for i in (0, 4, 5, 7)] == [(2, 12, 4, 6), (2, 8, 4, 6), (6, 12, 1, 1), (2, 4, 4, 6)]


def test_the_norm_reads_the_parts_too_and_images_lie_as_the_kernels_want_them() -> None:
    function = ENDS["of two parts that a norm reads too"][0]
    _, graph = rewritten(
        "images_channels_last", build(function), torch.randn(2, 12, 4, 6), torch.randn(2, 12, 4, 6), has_impl=always
    )
    (end,) = [node for node in graph.nodes if node.target is conv2d_shortcut]
    (norm,) = [node for node in graph.nodes if node.target is group_norm_act]
    assert count(graph, torch.cat) == 0
    assert [node.target for node in (norm.args[0], norm.args[7], end.args[4], end.args[7])] == [channels_last] * 4


def test_the_images_of_a_call_are_turned_too_and_the_weight_is_asked_for_in_channels_last() -> None:
    _, graph = rewritten(
        "convolutions_channels_last",
        build(ENDS["the shortcut last"][0]),
        *(torch.randn(2, 12, 4, 6) for _ in range(2)),
        has_impl=always,
    )
    (end,) = [node for node in graph.nodes if node.target is conv2d_shortcut]
    assert [end.args[place].target for place in (0, 4)] == [channels_last] * 2
    assert end.args[1].meta["source"].layout == CHANNELS_LAST != end.args[5].meta["source"].layout


def test_a_unets_shortcuts_are_all_found() -> None:
    unet = diffusers_unet()
    shortcuts = sum(1 for name, _ in unet.named_modules() if name.endswith("conv_shortcut"))
    net = Forward(lambda net, *inputs: net.unet(*inputs).sample, unet=unet)
    found, _ = rewritten(
        "fuse_conv_shortcut", net, torch.randn(2, 4, 8, 8), torch.tensor([7]), torch.randn(2, 5, 12), has_impl=always
    )
    assert found == shortcuts > 0
