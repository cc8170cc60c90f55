"""Tokens of which each frame has a modulation of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.ada_layer_norm import ada_layer_norm
from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[..., Any]
IMAGES, FRAMES, TOKENS, CHANNELS = 2, 3, 4, 16


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    norms = {name: nn.LayerNorm(CHANNELS, elementwise_affine=False) for name in ("norm1", "norm2")}
    return Forward(
        function,
        **norms,
        attend=nn.Linear(CHANNELS, CHANNELS),
        feed=nn.Linear(CHANNELS, CHANNELS),
        bias=nn.Linear(CHANNELS, 1),
    )


def each(e: torch.Tensor) -> torch.Tensor:
    """As Wan repeats them."""
    return torch.repeat_interleave(e, TOKENS, dim=1)


def block(net: Any, x: torch.Tensor, e: torch.Tensor) -> torch.Tensor:
    """As Wan 2.2's, with its modulation of [B, T, 5, C]."""
    shift, scale, gate, shift2, scale2 = e.unbind(2)
    y = net.attend(torch.addcmul(each(shift), net.norm1(x), 1 + each(scale)))
    x = torch.addcmul(x, y, each(gate))
    return x + net.feed(torch.addcmul(each(shift2), net.norm2(x), 1 + each(scale2)))


def inputs(images: int = IMAGES) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(images, FRAMES * TOKENS, CHANNELS), torch.randn(images, FRAMES, 5, CHANNELS)


def _rewritten(last: str, function: Function, *given: torch.Tensor) -> tuple[int, torch.fx.Graph]:
    return rewritten(last, build(function), *given, has_impl=lambda op, *_: op is ada_layer_norm)


@pytest.mark.parametrize("images", [1, 2])
def test_a_block_is_fused_as_one_of_images(images: int) -> None:
    found, graph = _rewritten("fuse_ada_layer_norm", block, *inputs(images))
    fused = [node for node in graph.nodes if node.target is ada_layer_norm]
    assert found == len(fused) == 2 and [node.args[4] is not None for node in fused] == [False, True]
    assert all(tuple(node.args[1].meta["val"].shape) == (images * FRAMES, 1, CHANNELS) for node in fused)
    assert count(graph, torch.repeat_interleave, torch.addcmul) == 0


def test_a_row_of_each_image_stays_what_it_is() -> None:
    """It would have to be repeated for its frames; one for all images is seen as it is."""

    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x = torch.addcmul(each(e[:, :, 0]), net.norm1(x), 1 + each(e[:, :, 1]))
        return x * e[:, :1, 2], x * e[:1, :1, 3]

    found, graph = _rewritten("frames_in_rows", function, *inputs())
    products = {tuple(node.meta["val"].shape) for node in graph.nodes if node.target is torch.mul}
    assert found == 3 and products == {(IMAGES, FRAMES * TOKENS, CHANNELS), (IMAGES * FRAMES, TOKENS, CHANNELS)}


STAY: dict[str, Function] = {
    "no norm": lambda net, x, e: x * each(e[:, :, 0]),
    "tokens in turn": lambda net, x, e: net.norm1(x) * e[:, :, 0].repeat(1, TOKENS, 1),
    "along the channels": lambda net, x, e: net.norm1(x) * torch.repeat_interleave(e[:, :1, 0, :4], 4, dim=2),
    "images": lambda net, x, e: (
        net.norm1(x[:1].expand(IMAGES, -1, -1)) * torch.repeat_interleave(e[:1, :1, 0], IMAGES, dim=0)
    ),
    "one row for all": lambda net, x, e: net.norm1(x) * torch.repeat_interleave(e[:, :1, 0], FRAMES * TOKENS, dim=1),
    "nothing modulated": lambda net, x, e: (net.norm1(x), each(e[:, :, 0]).sum(1)),
    "frames of two kinds": lambda net, x, e: (
        net.norm1(x) * each(e[:, :, 0]) + torch.repeat_interleave(e[:, :2, 1], 6, dim=1)
    ),
    "a number for each": lambda net, x, e: (
        net.norm1(x) * torch.repeat_interleave(e[:, :, 0], torch.tensor([4, 4, 4]), dim=1, output_size=12)
    ),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name: str) -> None:
    found, graph = _rewritten("frames_in_rows", STAY[name], *inputs())
    assert found == 0
    assert all(node.meta["val"].dim() == 3 for node in graph.nodes if node.target in (torch.mul, F.layer_norm))


def test_a_modulation_that_others_read_is_still_there() -> None:
    def function(net: Any, x: torch.Tensor, e: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        scale = 1 + each(e[:, :, 0])
        return net.norm1(x) * scale, scale.flatten(1)

    found, _ = _rewritten("frames_in_rows", function, *inputs())
    assert found == 2
