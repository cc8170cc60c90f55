"""What live code gives back may at another call be what it was given:
a write to the one is then a write to the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from tests.live import Host

NAME = "fast_compile_joined"


@pytest.fixture(scope="module", autouse=True)
def library() -> Iterator[Any]:
    library = torch.library.Library(NAME, "DEF")
    library.define("enlarge_(Tensor(a!) x) -> ()")
    library.impl("enlarge_", _enlarge, "CPU")
    yield library


def _enlarge(x: torch.Tensor) -> None:
    x.mul_(2)


class Changes(nn.Module):
    """Changes what a function gives back, in place or by an operator of a library's."""

    def __init__(self, by_operator: bool) -> None:
        super().__init__()
        self.out, self.by_operator = nn.Linear(8, 8), by_operator

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        (function,) = options["before"]
        x = function(x, options)
        if self.by_operator:
            getattr(torch.ops, NAME).enlarge_(x)
        else:
            x.mul_(2)
        return self.out(x)


@pytest.mark.parametrize("by_operator", [False, True])
def test_a_write_that_may_be_one_to_an_input_is_not_recorded(by_operator: bool) -> None:
    host = Host(Changes(by_operator))
    another, itself = (lambda x, options: x.clone()), (lambda x, options: x)
    for gives in (another, another, itself):
        x = torch.randn(2, 5, 8)
        mine, theirs = x.clone(), x.clone()
        torch.testing.assert_close(host(mine, before=[gives]), host.eager(theirs, before=[gives]))
        assert torch.equal(mine, theirs)
    assert host.calls == {"traced": 1, "eager": 2}
    assert any("writes to an input or a weight in place" in reason for reason in host.engine.report.reasons)


class Writes(nn.Module):
    """Hands two tensors on, of which one is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor, options: dict[str, Any]) -> torch.Tensor:
        h = self.out(x)
        (function,) = options["before"]
        return self.out(function(h[:, :3], h[:, 2:], options))


def test_tensors_that_overlap_do_so_in_live_code() -> None:
    def writes(one: torch.Tensor, other: torch.Tensor, options: Any) -> torch.Tensor:
        one.add_(1)
        return other * 2

    host = Host(Writes())
    for _ in range(3):
        x = torch.randn(2, 5, 8)
        torch.testing.assert_close(host(x, before=[writes]), host.eager(x, before=[writes]))
    assert any("lie in one memory" in reason for reason in host.engine.report.reasons)


def test_tensors_that_overlap_may_be_read() -> None:
    host = Host(Writes())
    for _ in range(3):
        x = torch.randn(2, 5, 8)
        reads = lambda one, other, options: one * 2 + other  # noqa: E731
        torch.testing.assert_close(host(x, before=[reads]), host.eager(x, before=[reads]))
    assert host.calls == {"traced": 1, "fused": 2}
