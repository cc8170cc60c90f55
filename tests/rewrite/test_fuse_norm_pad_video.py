"""The autoencoders of videos: what stands between two convolutions, frames that are kept, videos seen as images,
shuffles.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.fx import Graph

from sfast_core.ops.conv2d_act import conv2d_act
from sfast_core.ops.group_norm_act import group_norm_act
from sfast_core.ops.group_norm_affine import group_norm_affine
from sfast_core.ops.norm_pad_video import norm_pad_video
from sfast_core.rewrite import KEPT
from sfast_core.rewrite.graph import calls_of, named
from tests.models import Forward
from tests.tracing import count, rewritten

CHANNELS = 8
VIDEO, FRAMES = (1, CHANNELS, 3, 4, 5), (1, CHANNELS, 2, 4, 5)
Function = Callable[..., Any]


def build(function: Function) -> Forward:
    torch.manual_seed(0)
    return Forward(
        function,
        first=nn.Conv3d(CHANNELS, CHANNELS, 3, padding=(0, 1, 1)),
        last=nn.Conv3d(CHANNELS, CHANNELS, 3, padding=(0, 1, 1)),
        bare=nn.Conv3d(CHANNELS, CHANNELS, 3),
        point=nn.Conv3d(CHANNELS, CHANNELS, 1),
        flat=nn.Conv3d(CHANNELS, CHANNELS, (1, 3, 3), padding=(0, 1, 1)),
        timed=nn.Conv3d(CHANNELS, 2 * CHANNELS, (3, 1, 1)),
        norm=nn.GroupNorm(2, CHANNELS),
        gamma=nn.LayerNorm(CHANNELS),
    )


def rms(net: Any, x: torch.Tensor) -> torch.Tensor:
    return F.normalize(x, dim=1) * CHANNELS**0.5 * net.gamma.weight.reshape(CHANNELS, 1, 1, 1) + 0


def pixel(x: torch.Tensor) -> torch.Tensor:
    return x / torch.sqrt(torch.mean(x**2, dim=1, keepdim=True) + 1e-8)


def ends(x: torch.Tensor, front: int = 1, back: int = 1) -> torch.Tensor:
    return torch.cat([x[:, :, :1].repeat(1, 1, front, 1, 1), x, x[:, :, -1:].repeat(1, 1, back, 1, 1)], dim=2)


def doubled(x: torch.Tensor) -> torch.Tensor:
    first = F.interpolate(x[:, :, :1].squeeze(2), scale_factor=(2.0, 2.0), mode="nearest").unsqueeze(2)
    return torch.cat([first, F.interpolate(x[:, :, 1:], scale_factor=(2.0, 2.0, 2.0), mode="nearest")], dim=2)


def kept(net: Any, x: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    h = F.silu(rms(net, net.first(x)))
    return net.last(torch.cat([frames, h], 2)), h[:, :, -1:]


#: name: (forward of a video and frames, (act, times, pad, edge, whether frames lead) of each op)
PLAIN = ("none", (1, 1, 1), (0, 0, 0, 0, 0, 0), "replicate", False)
BETWEEN: dict[str, tuple[Function, list[tuple[Any, ...]]]] = {
    "frames in front": (kept, [("silu", (1, 1, 1), (0,) * 6, "replicate", True)]),
    "the first frame again": (
        lambda n, x, f: n.last(ends(F.silu(pixel(n.first(x))), 2, 0)),
        [("silu", (1, 1, 1), (2, 0, 0, 0, 0, 0), "replicate", False)],
    ),
    "both ends again, edges reflected": (
        lambda n, x, f: n.bare(F.pad(ends(F.silu(pixel(n.first(x)))), (1, 1, 1, 1, 0, 0), mode="reflect")),
        [("silu", (1, 1, 1), (1, 1, 1, 1, 1, 1), "reflect", False)],
    ),
    "modulated": (
        lambda n, x, f: n.last(ends(F.silu(pixel(n.first(x)) * (1 + f[:, :, :1, :1, :1]) + f[:, :, 1:, :1, :1]), 2, 0)),
        [("silu", (1, 1, 1), (2, 0, 0, 0, 0, 0), "replicate", False)],
    ),
    "edges replicated": (
        lambda n, x, f: n.bare(F.pad(F.silu(rms(n, n.first(x))), (1, 1, 1, 1, 2, 0), mode="replicate")),
        [("silu", (1, 1, 1), (2, 0, 1, 1, 1, 1), "replicate", False)],
    ),
    "without a norm": (
        lambda n, x, f: n.bare(F.pad(n.first(x), (1, 1, 1, 1, 2, 0), mode="replicate")),
        [("none", (1, 1, 1), (2, 0, 1, 1, 1, 1), "replicate", False)],
    ),
    "repeated, the first frame once": (
        lambda n, x, f: n.bare(
            F.pad(
                doubled(n.first(F.pad(x, (0, 0, 0, 0, 2, 0), mode="replicate"))), (1, 1, 1, 1, 2, 0), mode="replicate"
            )
        ),
        [
            ("none", (1, 1, 1), (2, 0, 0, 0, 0, 0), "replicate", False),
            ("none", (2, 2, 2), (1, 0, 1, 1, 1, 1), "replicate", False),
        ],
    ),
    "zeros around": (
        lambda n, x, f: n.bare(F.pad(F.silu(rms(n, n.first(x))), (1, 1, 1, 1, 2, 0))),
        [("silu", (1, 1, 1), (0,) * 6, "replicate", True)],
    ),
    "zeros on one side": (
        lambda n, x, f: n.bare(F.pad(F.silu(rms(n, n.first(x))), (0, 1, 0, 1, 2, 0))),
        [("silu", (1, 1, 1), (0,) * 6, "replicate", False)],
    ),
    "a norm that others read": (
        lambda n, x, f: (lambda h: n.bare(F.pad(h, (1, 1, 1, 1, 2, 0), mode="replicate")) + h)(
            F.silu(rms(n, n.first(x)))
        ),
        [("silu", *PLAIN[1:]), ("none", (1, 1, 1), (2, 0, 1, 1, 1, 1), "replicate", False)],
    ),
    "a norm over pixels": (
        lambda n, x, f: n.last(ends(F.normalize(n.first(x), dim=4) * CHANNELS**0.5, 2, 0)),
        [("none", (1, 1, 1), (2, 0, 0, 0, 0, 0), "replicate", False)],
    ),
    "another factor": (
        lambda n, x, f: F.normalize(n.last(n.first(ends(x, 2, 2))), dim=1) * 3.0,
        [("none", (1, 1, 1), (2, 2, 0, 0, 0, 0), "replicate", False)],
    ),
    "no video": (lambda n, x, f: F.silu(rms(n, n.first(x))), []),
}


def look(graph: Graph) -> list[tuple[Any, ...]]:
    found = [named(node) for node in calls_of(graph, norm_pad_video)]
    return [(call.act, tuple(call.times), tuple(call.pad), call.edge, call.lead is not None) for call in found]


@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_two_convolutions(name: str) -> None:
    function, expected = BETWEEN[name]
    net, inputs = build(function), (torch.randn(VIDEO), torch.randn(FRAMES))
    _, graph = rewritten("keep_frames", net, *inputs, has_impl=lambda *_: True)
    assert look(graph) == expected


def by_way_of_float32(net: Any, x: torch.Tensor, back: torch.dtype) -> torch.Tensor:
    """diffusers 0.42's ``WanRMS_norm`` and ``QwenImageRMS_norm``."""
    normalised = F.normalize(x.float(), dim=1).to(back)
    return normalised * CHANNELS**0.5 * net.gamma.weight.reshape(CHANNELS, 1, 1, 1) + 0.0


@pytest.mark.parametrize("back, fused", [(torch.bfloat16, True), (torch.float16, False)])
def test_a_norm_by_way_of_float32_is_the_norm(back: torch.dtype, fused: bool) -> None:
    """Where it comes back in x's dtype."""
    net = build(lambda n, x: n.bare(F.pad(F.silu(by_way_of_float32(n, n.first(x), back)).to(x.dtype), (1,) * 6)))
    _, graph = rewritten("keep_frames", net.bfloat16(), torch.randn(VIDEO).bfloat16(), has_impl=lambda *_: True)
    assert (count(graph, F.normalize) == 0) is fused
    assert look(graph) == ([("silu", *PLAIN[1:])] if fused else [])


def test_kept_frames_are_copied_behind_what_computes_them() -> None:
    net, inputs = build(kept), (torch.randn(VIDEO), torch.randn(FRAMES))
    _, graph = rewritten("keep_frames", net, *inputs, has_impl=lambda *_: True)
    (copy,) = [node for node in graph.nodes if KEPT in node.meta]
    assert copy < calls_of(graph, conv2d_act)[-1] and copy.meta["val"].is_contiguous(
        memory_format=torch.channels_last_3d
    )


def padded(x: torch.Tensor) -> torch.Tensor:
    return F.pad(x, (1, 1, 1, 1, 2, 0), mode="replicate")


def carried(n: Any, x: torch.Tensor, frames: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Frames of the part of the video before in front, and this part's for the one behind."""
    h = F.silu(n.norm(n.first(x)))
    h = torch.cat([frames, F.pad(h, (1, 1, 1, 1, 0, 0), mode="replicate")], 2)
    return n.bare(h), h[:, :, -2:].clone()


#: name: (forward, how many GroupNorms are statistics alone, how many stay an op of their own)
GROUP_NORMS: dict[str, tuple[Function, int, int]] = {
    "SiLU and edges": (lambda n, x, f: n.bare(padded(F.silu(n.norm(n.first(x))))), 1, 0),
    "edges alone": (lambda n, x, f: n.bare(padded(n.norm(n.first(x)))), 1, 0),
    "without weights": (lambda n, x, f: n.bare(padded(F.silu(F.group_norm(n.first(x), 2)))), 1, 0),
    "frames in front": (lambda n, x, f: n.last(torch.cat([f, F.silu(n.norm(n.first(x)))], 2)), 1, 0),
    "carried": (lambda n, x, f: carried(n, x, F.pad(f, (1, 1, 1, 1, 0, 0), mode="replicate")), 1, 0),
    "nothing is moved": (lambda n, x, f: n.last(F.silu(n.norm(n.bare(padded(x))))), 0, 1),
    "another activation between": (lambda n, x, f: n.bare(padded(F.relu(n.norm(n.first(x))))), 0, 1),
}


@pytest.mark.parametrize("name", GROUP_NORMS)
def test_a_group_norm_is_applied_where_its_result_is_moved(name: str) -> None:
    function, moved, left = GROUP_NORMS[name]
    net, inputs = build(function), (torch.randn(2, *VIDEO[1:]), torch.randn(2, *FRAMES[1:]))
    _, graph = rewritten("fuse_group_norm_act", net, *inputs, has_impl=lambda *_: True)
    assert (count(graph, group_norm_affine), count(graph, group_norm_act)) == (moved, left)
    applied = [call for node in calls_of(graph, norm_pad_video) if (call := named(node)).factor is not None]
    assert len(applied) == moved and all(call.eps is None and any(call.pad) or call.lead for call in applied)


def test_a_group_norm_without_a_kernel_for_its_statistics_stays() -> None:
    net, inputs = build(GROUP_NORMS["SiLU and edges"][0]), (torch.randn(VIDEO), torch.randn(FRAMES))
    has = lambda op, *_: op is not group_norm_affine  # noqa: E731
    _, graph = rewritten("fuse_group_norm_act", net, *inputs, has_impl=has)
    assert (count(graph, group_norm_affine), count(graph, group_norm_act)) == (0, 1)


IMAGES: dict[str, tuple[Function, int, int]] = {  # convolutions of images, and norms
    "over frames": (lambda n, x: n.flat(n.first(x)) + n.first(x), 1, 0),
    "over time": (lambda n, x: n.timed(n.first(n.flat(x)))[:, :, :1], 2, 0),
    "a GroupNorm": (lambda n, x: n.flat(F.silu(n.norm(n.last(n.flat(x))))), 2, 1),
    "patches alone": (lambda n, x: F.conv3d(x, n.flat.weight, None, (1, 3, 3)), 0, 0),
}


@pytest.mark.parametrize("name", IMAGES)
def test_videos_as_images(name: str) -> None:
    function, convolutions, norms = IMAGES[name]
    net, inputs = build(function), (torch.randn(1, CHANNELS, 5, 6, 6),)
    _, graph = rewritten("keep_frames", net, *inputs, has_impl=lambda *_: True)
    of_images = [node for node in calls_of(graph, conv2d_act) if named(node).x.meta["val"].dim() == 4]
    assert (len(of_images), count(graph, group_norm_act)) == (convolutions, norms)


def stacked(n: Any, x: torch.Tensor) -> torch.Tensor:
    x = n.timed(n.first(x))
    b, c, t, h, w = x.shape
    x = x.reshape(b, 2, c // 2, t, h, w)
    return n.flat(n.flat(torch.stack((x[:, 0], x[:, 1]), 3).reshape(b, c // 2, t * 2, h, w)))


def shuffled(n: Any, x: torch.Tensor) -> torch.Tensor:
    x = n.first(x).repeat_interleave(4, dim=1)
    b, c, t, h, w = x.shape
    return n.flat(
        n.flat(x.reshape(b, 2, 2, c // 4, t, h, w).permute(0, 3, 4, 5, 1, 6, 2).reshape(b, c // 4, t, 2 * h, 2 * w))
    )


@pytest.mark.parametrize("function", [stacked, shuffled])
def test_shuffles_leave_channels_innermost(function: Function) -> None:
    net, inputs = build(function), (torch.randn(1, CHANNELS, 5, 4, 4),)
    _, graph = rewritten("keep_frames", net, *inputs, has_impl=lambda *_: True)
    assert count(graph, torch.stack, "repeat_interleave", torch.repeat_interleave) == 0
    copies = [
        node
        for node in calls_of(graph, torch.reshape)
        if node.args[0].meta["val"].dim() > 5 and node.meta["val"].dim() == 5
    ]
    assert copies and all(node.meta["val"].shape[-1] % CHANNELS == 0 for node in copies)
