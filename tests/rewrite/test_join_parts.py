"""Tokens that are modulated in parts: one call for all, with a row for each part."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core.capture.functional import setitem
from sfast_core.ops.ada_layer_norm import ada_layer_norm
from sfast_core.ops.ada_rms_norm import ada_rms_norm
from sfast_core.ops.gated_sum import gated_sum
from sfast_core.ops.token_rows import of_each_token
from sfast_core.rewrite.graph import named, shape
from tests.models import Forward
from tests.tracing import count, rewritten

Function = Callable[..., Any]
LENGTH, FIRST, CHANNELS = 12, 5, 16
OPS = (ada_layer_norm, ada_rms_norm, gated_sum)


def inputs(images: int = 2) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens, and scale, shift and gate, [2 * B, 3 * C], of the first part and of the second."""
    return torch.randn(images, LENGTH, CHANNELS), torch.randn(2 * images, 3 * CHANNELS)


def joined(function: Function, images: int = 2, last: str = "join_parts", impl: bool = True) -> tuple[int, Any]:
    torch.manual_seed(0)
    net = Forward(function, norm=nn.LayerNorm(CHANNELS, elementwise_affine=False), feed=nn.Linear(CHANNELS, CHANNELS))
    return rewritten(last, net, *inputs(images), has_impl=lambda op, *_: impl and op in OPS)


def parts(rows: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of both parts, [B, 1, C]."""
    images = len(rows) // 2
    return rows[:images].unsqueeze(1), rows[images:].unsqueeze(1)


def modulated(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """As Qwen-Image-Edit does it."""
    (first_shift, other_shift), (first_scale, other_scale) = parts(shift), parts(scale)
    first = torch.addcmul(first_shift, x[:, :FIRST], 1 + first_scale)
    return torch.cat((first, torch.addcmul(other_shift, x[:, FIRST:], 1.0 + other_scale)), dim=1)


def gated(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    first, other = parts(gate)
    return torch.cat((x[:, :FIRST] * first, x[:, FIRST:] * other), dim=1)


def modulated_in_place(x: torch.Tensor, shift: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """As Krea 2 does it."""
    (first_shift, other_shift), (first_scale, other_scale) = parts(shift), parts(scale)
    x[:, :FIRST].mul_(1 + first_scale).add_(first_shift)
    x[:, FIRST:].mul_(1 + other_scale).add_(other_shift)
    return x


def gated_in_place(x: torch.Tensor, gate: torch.Tensor) -> torch.Tensor:
    first, other = parts(gate)
    x[:, FIRST:] *= other
    x[:, :FIRST] *= first
    return x


WAYS = {"joined": (modulated, gated), "in place": (modulated_in_place, gated_in_place)}


@pytest.mark.parametrize("images", [1, 2])
@pytest.mark.parametrize("name", WAYS)
def test_a_block(name: str, images: int) -> None:
    modulate, gate_by = WAYS[name]

    def function(net: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        shift, scale, gate = rows.chunk(3, -1)
        x = x + gate_by(net.feed(modulate(net.norm(x), shift, scale)), gate)
        return net.feed(modulate(F.rms_norm(x, (CHANNELS,)), shift, scale))

    found, _ = joined(function, images)
    assert found == 3
    _, graph = joined(function, images, last="fuse_gated_sum")
    calls = [named(node) for node in graph.nodes if node.target in OPS]
    assert [node.target for node in graph.nodes if node.target in OPS] == [ada_layer_norm, ada_rms_norm]
    for call in calls:
        assert call.part == FIRST and shape(call.scale) == shape(call.shift) == (images, 2, CHANNELS)
    assert shape(calls[1].gate) == (images, 2, CHANNELS)
    assert count(graph, torch.cat, setitem, of_each_token, torch.addcmul) == 0


def test_rows_that_lie_behind_one_another_already() -> None:
    def function(net: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        rows = rows.view(len(x), 2, -1)[..., :CHANNELS].contiguous()
        x = net.feed(x)
        return torch.cat((x[:, :FIRST] * rows[:, :1], x[:, FIRST:] * rows[:, 1:]), dim=1)

    found, graph = joined(function)
    assert found == 1 and count(graph, torch.cat) == 0


def test_rows_that_lie_anywhere() -> None:
    def function(net: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x, (first, other) = net.feed(x), parts(rows[:, :CHANNELS])
        return torch.cat((x[:, :FIRST] * other, x[:, FIRST:] * first), dim=1)

    found, graph = joined(function)
    assert found == 1 and count(graph, torch.cat) == 1


def test_more_parts() -> None:
    def function(net: Any, x: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
        x, (first, other) = net.feed(x), parts(rows[:, :CHANNELS])
        return torch.cat((x[:, :3] * first, x[:, 3:6] * other, x[:, 6:9] * first, x[:, 9:] * other), dim=1)

    found, graph = joined(function, last="fuse_gated_sum")
    (call,) = (named(node) for node in graph.nodes if node.target is gated_sum)
    assert call.part == 3 and shape(call.gate) == (2, 4, CHANNELS)


def test_without_a_kernel_all_stays() -> None:
    found, graph = joined(lambda net, x, rows: gated(net.feed(x), rows[:, :CHANNELS]), impl=False)
    assert found == 0 and count(graph, torch.cat) == 1


def _parts_of(x: torch.Tensor, *bounds: int) -> list[torch.Tensor]:
    return [x[:, start:stop] for start, stop in zip((0, *bounds), (*bounds, LENGTH), strict=True)]


def _written(x: torch.Tensor, *places: slice, by: torch.Tensor) -> torch.Tensor:
    for place in places:
        x[:, place] *= by
    return x


def _put(x: torch.Tensor, parts: list[torch.Tensor]) -> torch.Tensor:
    x[:, :5], x[:, 5:] = parts
    return x


STAY: dict[str, Function] = {
    "parts of unequal length before the last": lambda x, y, row: torch.cat(
        [part * row for part in _parts_of(x, 2, 7)], dim=1
    ),
    "parts of several tensors": lambda x, y, row: torch.cat((x[:, :5] * row, y[:, 5:] * row), dim=1),
    "parts in another order": lambda x, y, row: torch.cat((x[:, 5:] * row, x[:, :5] * row), dim=1),
    "parts that overlap": lambda x, y, row: torch.cat((x[:, :6] * row, x[:, 5:11] * row), dim=1),
    "not all tokens": lambda x, y, row: torch.cat((x[:, :5] * row, x[:, 5:10] * row), dim=1),
    "different operations": lambda x, y, row: torch.cat((x[:, :5] * row, x[:, 5:] + row), dim=1),
    "different numbers": lambda x, y, row: torch.cat((x[:, :5] * row * 2, x[:, 5:] * row * 3), dim=1),
    "no rows": lambda x, y, row: torch.cat((x[:, :5] * y[:, :5], x[:, 5:] * y[:, 5:]), dim=1),
    "along the channels": lambda x, y, row: torch.cat((x[..., :5] * row[..., :5], x[..., 5:] * row[..., 5:]), dim=-1),
    "another reads a part": lambda x, y, row: (lambda a: (torch.cat((a, x[:, 5:] * row), dim=1), a))(x[:, :5] * row),
    "one part written": lambda x, y, row: _written(x, slice(0, 5), by=row),
    "places that overlap": lambda x, y, row: _written(x, slice(0, 6), slice(5, 12), by=row),
    "another reads what is half written": lambda x, y, row: (
        lambda half: (_written(half.clone(), slice(5, 12), by=row), half)
    )(_written(x, slice(0, 5), by=row)),
    "written in another dtype": lambda x, y, row: _put(x.clone(), [part * row.double() for part in _parts_of(x, 5)]),
    "written to all images": lambda x, y, row: _put(y.clone(), [part * row[:1] for part in _parts_of(x[:1], 5)]),
    "a row for each image, and one for all": lambda x, y, row: torch.cat((x[:, :5] * row, x[:, 5:] * row[:1]), dim=1),
    "a part alone": lambda x, y, row: torch.cat((x[:, :5], x[:, 5:] * row), dim=1),
}


@pytest.mark.parametrize("name", STAY)
def test_others_stay(name: str) -> None:
    def function(net: Any, x: torch.Tensor, rows: torch.Tensor) -> Any:
        return STAY[name](net.feed(x), x, rows[:2, None, :CHANNELS])

    found, graph = joined(function)
    assert found == 0 and count(graph, of_each_token) == 0
