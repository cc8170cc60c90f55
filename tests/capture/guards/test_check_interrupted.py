"""A check that is interrupted leaves no place unwatched: the next one finds what has changed."""

from __future__ import annotations

import sys
from types import FrameType
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture.guards import places, untouched
from tests.models import Forward
from tests.tracing import guarded

OURS = (places.__file__, untouched.__file__)


class Scale(nn.Module):
    """Has attributes that it reads."""

    def __init__(self) -> None:
        super().__init__()
        self.k, self.words = 1.0, ("a", "b")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.k * len(self.words)


class Interrupter:
    """Raises at the n-th line that runs in these files."""

    def __init__(self, at: int) -> None:
        self.left = at

    def __enter__(self) -> None:
        sys.settrace(self._in)

    def __exit__(self, *_: Any) -> None:
        sys.settrace(None)

    def _in(self, frame: FrameType, event: str, arg: Any) -> Any:
        if frame.f_code.co_filename not in OURS:
            return None
        if event == "line":
            self.left -= 1
            if not self.left:
                raise KeyboardInterrupt
        return self._in


@pytest.mark.parametrize("settled", [False, True], ids=["the first check", "a later check"])
def test_an_interruption_anywhere_leaves_every_place_watched(settled: bool) -> None:
    net: Any = Forward(lambda net, x: net.a(net.b(net.c(x))), a=Scale(), b=Scale(), c=Scale())
    x = torch.ones(2, 8)
    at, over = 0, False
    while not over:
        at += 1
        net.a.k = net.b.k = net.c.k = 1.0
        _, _, guard = guarded(net, x)
        for _ in range(2 * settled):
            assert guard.changed(net) is None
        net.a.words = net.c.words = tuple("ab")  # as good as what was there
        net.b.k = 2.0
        try:
            with Interrupter(at):
                guard.changed(net)
            over = True
        except KeyboardInterrupt:
            pass
        assert guard.changed(net) == "b.k changed", at
        net.b.k = 1.0
        assert guard.changed(net) is None, at
    assert at > 20
