"""Rows that models repeat for the tokens of a frame: ops get each once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from sfast_core.ops.ada_rms_norm import ada_rms_norm
from sfast_core.ops.gated_sum import gated_sum
from sfast_core.rewrite.graph import named, shape
from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[..., Any]
FRAMES, TOKENS, CHANNELS = 3, 4, 16


def inputs(images: int = 2, length: int = FRAMES * TOKENS) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(images, length, CHANNELS), torch.randn(images, FRAMES, 5, CHANNELS)


def fused(last: str, op: Any, function: Function, *given: torch.Tensor) -> tuple[torch.fx.Graph, list[Any]]:
    """The graph after the pass named ``last``, and the arguments of each call of an op that has kernels."""
    torch.manual_seed(0)
    layers = {name: nn.LayerNorm(CHANNELS, elementwise_affine=False) for name in ("norm1", "norm2")}
    net = Forward(function, **layers, attend=nn.Linear(CHANNELS, CHANNELS), feed=nn.Linear(CHANNELS, CHANNELS))
    _, graph = rewritten(last, net, *given, has_impl=lambda tried, *_: tried is op)
    return graph, [named(node) for node in graph.nodes if node.target is op]


def interleaved(e: torch.Tensor) -> torch.Tensor:
    """As Wan repeats them."""
    return torch.repeat_interleave(e, TOKENS, dim=1)


def expanded(e: torch.Tensor) -> torch.Tensor:
    """As LTX-2 does."""
    return e.unsqueeze(2).expand(-1, -1, TOKENS, -1).reshape(len(e), -1, CHANNELS)


EACH = {"interleaved": interleaved, "expanded": expanded}


def block(net: Any, x: torch.Tensor, e: torch.Tensor, each: Function) -> torch.Tensor:
    """As Wan 2.2's, with its modulation of [B, T, 5, C]."""
    shift, scale, gate, shift2, scale2 = e.unbind(2)
    y = net.attend(torch.addcmul(each(shift), net.norm1(x), 1 + each(scale)))
    x = torch.addcmul(x, y, each(gate))
    return x + net.feed(torch.addcmul(each(shift2), net.norm2(x), 1 + each(scale2)))


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("each", EACH)
def test_a_block(each: str, images: int) -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return block(net, x, e, EACH[each])

    graph, calls = fused("fuse_ada_layer_norm", ada_layer_norm, function, *inputs(images))
    assert [call.gate is not None for call in calls] == [False, True]
    for call in calls:
        assert call.part == TOKENS
        assert {shape(row) for row in (call.scale, call.shift, call.gate) if row} == {(images, FRAMES, CHANNELS)}
    assert count(graph, torch.repeat_interleave, torch.addcmul, torch.Tensor.expand) == 0


@pytest.mark.parametrize("each", EACH)
def test_an_rms_norm(each: str) -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        shift, scale = (EACH[each](row) for row in e.unbind(2)[:2])
        return F.rms_norm(x, (CHANNELS,)) * (1 + scale) + shift

    _, (call,) = fused("fuse_ada_rms_norm", ada_rms_norm, function, *inputs())
    assert call.part == TOKENS and shape(call.scale) == shape(call.shift) == (2, FRAMES, CHANNELS)


#: Products with a repeated gate.
GATED: dict[str, Function] = {
    "sum": lambda net, x, gate: x + gate * net.feed(x),
    "sum, gate last": lambda net, x, gate: x + net.feed(x) * gate,
    "addcmul": lambda net, x, gate: torch.addcmul(x, gate, net.feed(x)),
    "no sum": lambda net, x, gate: net.feed(x) * gate,
}


@pytest.mark.parametrize("each", EACH)
@pytest.mark.parametrize("name", GATED)
def test_a_gate(name: str, each: str) -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return GATED[name](net, x, EACH[each](e[:, :, 0]))

    _, (call,) = fused("fuse_gated_sum", gated_sum, function, *inputs())
    assert call.part == TOKENS and shape(call.gate) == (2, FRAMES, CHANNELS)


def test_more_rows_than_the_tokens_need() -> None:
    """Tokens that no whole frame is left for: some models repeat once more and cut off what is too much."""

    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        shift, scale = (torch.repeat_interleave(row, 5, dim=1)[:, :13] for row in e.unbind(2)[:2])
        return torch.addcmul(shift, net.norm1(x), 1 + scale)

    _, (call,) = fused("fuse_ada_layer_norm", ada_layer_norm, function, *inputs(length=13))
    assert call.part == 5 and shape(call.scale) == (2, FRAMES, CHANNELS)


def test_beside_a_row_for_each_image() -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        return torch.addcmul(e[:, :1, 0], net.norm1(x), 1 + interleaved(e[:, :, 1]))

    _, (call,) = fused("fuse_ada_layer_norm", ada_layer_norm, function, *inputs())
    assert call.part == TOKENS and shape(call.shift) == (2, 1, CHANNELS)


#: Modulations that an op gets token by token.
BY_TOKEN: dict[str, Function] = {
    "repeated in two ways": lambda net, x, e: torch.addcmul(
        interleaved(e[:, :, 0]), net.norm1(x), 1 + torch.repeat_interleave(e[:, :2, 1], 6, dim=1)
    ),
    "one repeated, the other not": lambda net, x, e: torch.addcmul(x, net.norm1(x), 1 + interleaved(e[:, :, 0])),
    "in turn": lambda net, x, e: torch.addcmul(
        e[:, :, 0].repeat(1, TOKENS, 1), net.norm1(x), 1 + e[:, :, 1].repeat(1, TOKENS, 1)
    ),
    "the first are cut off": lambda net, x, e: torch.addcmul(
        *((torch.repeat_interleave(e[:, :, 0], 5, dim=1)[:, 3:], net.norm1(x))), 1 + x
    ),
    "a number for each": lambda net, x, e: torch.addcmul(
        x, net.norm1(x), 1 + torch.repeat_interleave(e[:, :, 0], torch.tensor([4, 4, 4]), dim=1, output_size=12)
    ),
}


@pytest.mark.parametrize("name", BY_TOKEN)
def test_others_are_taken_as_they_are(name: str) -> None:
    _, (call,) = fused("fuse_ada_layer_norm", ada_layer_norm, BY_TOKEN[name], *inputs())
    assert call.part == 1 and shape(call.scale) == (2, FRAMES * TOKENS, CHANNELS)


def test_along_the_channels_nothing_is_a_row() -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
        row = torch.repeat_interleave(e[:, :1, 0, :4], 4, dim=2)
        return torch.addcmul(row, net.norm1(x), 1 + row)

    _, (call,) = fused("fuse_ada_layer_norm", ada_layer_norm, function, *inputs())
    assert call.part == 1 and shape(call.scale) == (2, 1, CHANNELS)
