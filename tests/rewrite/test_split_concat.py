"""Concatenations of images that nobody needs in one piece."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.conv2d_shortcut import conv2d_shortcut
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.ops.linear import linear
from tests.models import Forward
from tests.tracing import count, evaluate, linears, rewritten

Function = Callable[..., Any]


def but_shortcuts(reference: Any, *_: Any) -> bool:
    """A kernel for all, but for a 1x1 convolution as part of another, which reads both images by itself."""
    return reference is not conv2d_shortcut


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        norm=nn.GroupNorm(3, 12),
        short=nn.Conv2d(12, 6, 1),
        wide=nn.Conv2d(12, 6, 3, padding=1),
        lin=nn.Linear(12, 12),
    )


def of_joined(use: Callable[[Forward, torch.Tensor], torch.Tensor]) -> Function:
    return lambda net, x, y: use(net, torch.cat([x, y], dim=1))


# name: (forward of two images, concatenations split)
CASES: dict[str, tuple[Function, int]] = {
    "a norm": (of_joined(lambda net, z: net.norm(z)), 1),
    "a norm and SiLU": (of_joined(lambda net, z: F.silu(net.norm(z))), 1),
    "a norm with an addend": (of_joined(lambda net, z: net.norm(z + net.lin.bias[None, :, None, None])), 1),
    "a residual block": (of_joined(lambda net, z: net.wide(F.silu(net.norm(z))) + net.short(z)), 1),
    "a 1x1 convolution": (of_joined(lambda net, z: net.short(z)), 1),
    "a residual block whose 1x1 convolution takes the sum": (
        lambda net, x, y: net.short(torch.cat([x, y], dim=1)) + x[:, :6] * 2,
        1,
    ),
    "two in a row": (
        lambda net, x, y: net.norm(
            torch.cat([net.short(torch.cat([x, y], 1)), net.short(torch.cat([x, y * 2], 1))], 1)
        ),
        3,
    ),
    "a dim from behind": (lambda net, x, y: net.norm(torch.cat([x, y], dim=-3)), 1),
    "a 3x3 convolution": (of_joined(lambda net, z: net.wide(z)), 0),
    "a residual connection": (of_joined(lambda net, z: net.norm(z) + z), 0),
    "the joined image itself": (of_joined(lambda net, z: (net.norm(z), z)), 0),
    "three images": (lambda net, x, y: net.norm(torch.cat([x, y[:, :2], y[:, 2:]], dim=1)), 0),
    "along the height": (lambda net, x, y: net.norm(torch.cat([torch.cat([x, x], 2), torch.cat([y, y], 2)], 1)), 1),
    "tokens": (lambda net, x, y: net.lin(torch.cat([x, y], 1).flatten(2).transpose(1, 2)), 0),
    "another dtype": (lambda net, x, y: net.norm(torch.cat([x, y.half()], dim=1)), 0),
}


@pytest.mark.parametrize("name", CASES)
def test_a_concatenation_goes_where_all_readers_take_its_parts(name: str) -> None:
    function, split = CASES[name]
    net, images = build(function), (torch.randn(2, 8, 4, 6), torch.randn(2, 4, 4, 6))
    found, graph = rewritten("split_concat", net, *images, has_impl=but_shortcuts)
    assert found == split
    fresh = [torch.randn_like(image) for image in images]
    with torch.no_grad():
        expected = net(*fresh)
    for mine, theirs in zip(
        evaluate(graph, fresh), expected if isinstance(expected, tuple) else (expected,), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-5, atol=1e-5)


def test_the_norm_and_the_product_read_both_parts() -> None:
    net = build(CASES["a residual block"][0])
    _, graph = rewritten("split_concat", net, torch.randn(2, 8, 4, 6), torch.randn(2, 4, 4, 6), has_impl=but_shortcuts)
    # one is the sum with the 3x3 convolution
    assert count(graph, torch.cat) == 0 and len(linears(graph, "residual")) == 2
    (norm,) = [node for node in graph.nodes if node.target is group_norm_act]
    assert [node.name for node in (norm.args[0], norm.args[7])] == ["input_0", "input_1"]


@pytest.mark.parametrize("missing", [group_norm_act, linear])
def test_all_stays_where_a_kernel_is_missing(missing: Function) -> None:
    net = build(CASES["a residual block"][0])

    def has_impl(reference: Function, *args: Any) -> bool:
        return reference not in (missing, conv2d_shortcut)

    found, graph = rewritten("split_concat", net, torch.randn(2, 8, 4, 6), torch.randn(2, 4, 4, 6), has_impl=has_impl)
    assert found == 0 and count(graph, torch.cat) == 1
