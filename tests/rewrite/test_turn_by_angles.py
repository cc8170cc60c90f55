"""Rotations by cosine and sine, where their values are known."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sfast_core.ops.norm_rope import norm_rope
from tests.ops.cases.norm_rope import rotations
from tests.rewrite.normed_ropes import B, D, H, L
from tests.tracing import rewritten

_CPU = torch.device("cpu")


class _Turned(nn.Module):
    """Turns each head of two images, ``times`` times, by ``tables()``, which depends on nothing, or by what it is given."""

    def __init__(self, tables: Callable[[], torch.Tensor], times: int = 1) -> None:
        super().__init__()
        self.tables, self.times = tables, times

    def forward(self, x: torch.Tensor, given: torch.Tensor | None = None) -> tuple[torch.Tensor, ...]:
        matrices = self.tables() if given is None else given
        several = [(x * (1 + i)).unflatten(-1, (-1, 1, 2)) for i in range(self.times)]
        return tuple((matrices[..., 0] * x[..., 0] + matrices[..., 1] * x[..., 1]).flatten(3) for x in several)


def _by_head(images: int = 1) -> torch.Tensor:
    """[images, L, H, D / 2, 2, 2]"""
    return rotations(L * H, D, _CPU, images).unflatten(1, (L, H))


def _tables_of(module: nn.Module, found: int) -> list[torch.Tensor]:
    """What ``norm_rope`` gets, with ``found`` tables turned into angles."""
    x = torch.randn(B, L, H, D)
    count, graph = rewritten("fold_constants_again", module, x, has_impl=lambda *_: True)
    assert count >= found
    return [node.args[2].meta["val"] for node in graph.nodes if node.target is norm_rope]


def _turned(module: nn.Module) -> int:
    return rewritten("turn_by_angles", module, torch.randn(B, L, H, D), has_impl=lambda *_: True)[0]


def test_tables_of_each_head_become_angles() -> None:
    module = _Turned(_by_head, times=2)

    first, second = _tables_of(module, found=1)

    assert first is second
    assert first.shape == (1, L, H, D // 2, 2)
    assert _turned(module) == 1


def test_images_that_are_turned_alike_share_their_angles() -> None:
    module = _Turned(lambda: _by_head().expand(B, -1, -1, -1, -1, -1).contiguous())

    assert _tables_of(module, found=1)[0].shape == (1, L, H, D // 2, 2)


def test_images_that_are_turned_otherwise_keep_theirs() -> None:
    assert _tables_of(_Turned(lambda: _by_head(images=B)), found=1)[0].shape == (B, L, H, D // 2, 2)


@pytest.mark.parametrize("place", [(0, 0), (0, 1), (1, 0), (1, 1)])
def test_matrices_that_turn_by_no_angle_stay(place: tuple[int, int]) -> None:
    def scaled() -> torch.Tensor:
        matrices = _by_head()
        matrices[0, L - 1, H - 1, D // 2 - 1][place] += 1e-3
        return matrices

    assert _turned(_Turned(scaled)) == 0


def test_tables_that_a_call_brings_stay() -> None:
    inputs = torch.randn(B, L, H, D), _by_head()

    assert rewritten("turn_by_angles", _Turned(_by_head), *inputs, has_impl=lambda *_: True)[0] == 0
