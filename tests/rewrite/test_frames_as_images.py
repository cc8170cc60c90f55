"""Blocks that look along time alone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.group_norm_act import group_norm_act
from tests.models import Forward
from tests.tracing import count, evaluate, rewritten

Function = Callable[..., Any]
FRAMES, CHANNELS = (6, 8, 5, 4), 8  # two videos of three images


def build(function: Function, **kernel: Any) -> Forward:
    torch.manual_seed(0)
    settings = {"kernel_size": (3, 1, 1), "padding": (1, 0, 0), **kernel}
    return Forward(
        function,
        norm=nn.GroupNorm(4, CHANNELS),
        one=nn.Conv3d(CHANNELS, CHANNELS, **settings),
        two=nn.Conv3d(CHANNELS, CHANNELS, **settings),
    )


def video(x: torch.Tensor) -> torch.Tensor:
    return x.unflatten(0, (2, 3)).transpose(1, 2)


def block(net: Any, x: torch.Tensor, embedding: torch.Tensor) -> torch.Tensor:
    """As in Stable Video Diffusion."""
    frames = video(x)
    hidden = net.one(F.silu(net.norm(frames)))
    hidden = hidden + embedding.unflatten(0, (2, 3)).transpose(1, 2)[..., None, None]
    hidden = frames + net.two(F.silu(net.norm(hidden)))
    return (frames * 0.25 + hidden * 0.75).transpose(1, 2).flatten(0, 1)


def _rewritten(
    last: str, function: Function, *inputs: torch.Tensor, has: bool = True, **kernel: Any
) -> tuple[int, torch.fx.Graph]:
    return rewritten(last, build(function, **kernel), *inputs, has_impl=lambda op, *_: has and op is conv2d_act)


def test_a_block_is_made_of_images() -> None:
    found, graph = _rewritten("frames_as_images", block, torch.randn(FRAMES), torch.randn(6, CHANNELS))
    assert (
        found == 2
        and count(graph, F.conv3d) == 0
        and count(graph, F.conv2d) == count(graph, F.group_norm) == count(graph, F.silu) == 2
    )
    assert all(node.meta["val"].dim() == 4 for node in graph.nodes if node.target in (F.conv2d, F.group_norm, F.silu))


def test_its_norms_and_sums_are_fused() -> None:
    _, graph = _rewritten("fuse_conv_act", block, torch.randn(FRAMES), torch.randn(6, CHANNELS))
    norms, convolutions = ([node for node in graph.nodes if node.target is op] for op in (group_norm_act, conv2d_act))
    assert [node.args[5] for node in norms] == ["silu", "silu"]
    assert [node.args[7] is not None for node in convolutions] == [False, True]


def test_images_that_lie_channels_last_are_not_copied() -> None:
    """What enters the ops is a view of the frames, whose channels are innermost when the graph runs."""
    module = build(block)
    _, graph = rewritten(
        "images_channels_last",
        module,
        torch.randn(FRAMES),
        torch.randn(6, CHANNELS),
        has_impl=lambda op, *_: op is conv2d_act,
    )
    x = torch.randn(FRAMES).contiguous(memory_format=torch.channels_last)
    first = next(node for node in graph.nodes if node.target is group_norm_act)
    output = next(node for node in graph.nodes if node.op == "output")
    output.args = ((first.args[0],),)
    (seen,) = evaluate(graph, [x, torch.randn(6, CHANNELS)])
    assert seen.data_ptr() == x.data_ptr() and seen.is_contiguous(memory_format=torch.channels_last)


KERNELS: dict[str, dict[str, Any]] = {
    "five frames": {"kernel_size": (5, 1, 1), "padding": (2, 0, 0)},
    "no padding": {"padding": 0},
    "every other frame": {"stride": (2, 1, 1)},
    "dilated": {"dilation": (2, 1, 1), "padding": (2, 0, 0)},
    "groups": {"groups": 2},
    "no bias": {"bias": False},
    "each frame alone": {"kernel_size": 1, "padding": 0},
}


@pytest.mark.parametrize("name", KERNELS)
def test_kernels_along_time(name: str) -> None:
    found, graph = _rewritten(
        "frames_as_images", lambda net, x: net.one(video(x)), torch.randn(FRAMES), **KERNELS[name]
    )
    assert found == count(graph, F.conv2d) == 1


STAY: dict[str, tuple[Function, dict[str, Any]]] = {
    "a kernel of space": (lambda net, x: net.one(video(x)), {"kernel_size": 3, "padding": 1}),
    "a kernel of rows": (lambda net, x: net.one(video(x)), {"kernel_size": (3, 3, 1), "padding": (1, 1, 0)}),
    "fewer pixels": (lambda net, x: net.one(video(x)), {"stride": 2}),
    "a border": (lambda net, x: net.one(video(x)), {"padding": 1}),
    "a padding by name": (lambda net, x: net.one(video(x)), {"padding": "same"}),
}


def test_a_video_that_is_none_of_images_stays() -> None:
    """As in video VAEs: its channels are not innermost."""
    found, graph = _rewritten(
        "frames_as_images", lambda net, x: net.one(F.silu(net.norm(x)) + x), torch.randn(2, CHANNELS, 3, 5, 4)
    )
    assert found == 0 and count(graph, F.conv3d) == 1


@pytest.mark.parametrize("name", STAY)
def test_what_looks_at_other_pixels_stays(name: str) -> None:
    function, kernel = STAY[name]
    found, graph = _rewritten("frames_as_images", function, torch.randn(FRAMES), **kernel)
    assert (
        found == 0
        and count(graph, F.conv3d) == 1
        and count(graph, F.conv2d, torch.reshape) == count(graph, torch.reshape)
    )


def test_without_a_kernel_all_stays() -> None:
    found, graph = _rewritten("frames_as_images", block, torch.randn(FRAMES), torch.randn(6, CHANNELS), has=False)
    assert found == 0 and count(graph, F.conv3d) == 2 and count(graph, F.conv2d) == 0


def test_a_norm_that_others_read_stays_where_it_is() -> None:
    def function(net: Any, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        normed = F.silu(net.norm(video(x)))
        return net.one(normed), normed

    found, graph = _rewritten("frames_as_images", function, torch.randn(FRAMES))
    (norm,) = (node for node in graph.nodes if node.target is F.group_norm)
    assert found == 1 and norm.meta["val"].dim() == 5


def test_a_sum_with_something_of_another_shape_stays() -> None:
    found, graph = _rewritten(
        "frames_as_images", lambda net, x: net.one(video(x)) + video(x)[..., :1], torch.randn(FRAMES)
    )
    (added,) = (node for node in graph.nodes if node.target is torch.add)
    assert found == 1 and added.meta["val"].dim() == 5
