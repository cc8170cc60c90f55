"""Another function in the place of one of PyTorch's: what C hands over is that one, and is not to be called twice."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward


class Doubled:
    def __init__(self, operator: Any) -> None:
        self.operator = operator

    def __call__(self, x: torch.Tensor) -> Any:
        return self.operator(x) * 2

    def __getattr__(self, name: str) -> Any:
        return getattr(self.operator, name)


def test_another_function_in_the_place_of_an_operator(monkeypatch: pytest.MonkeyPatch) -> None:
    net = Forward(lambda net, x: torch.ops.aten.sinc(net.lin(x)), lin=nn.Linear(8, 8)).requires_grad_(False)
    handle, x, sinc = compile(net, CompileConfig(allow_cpu=True)), torch.ones(2, 8), torch.ops.aten.sinc
    with torch.no_grad():
        plain = net(x).clone()
        monkeypatch.setattr(torch.ops.aten, "sinc", Doubled(sinc))
        for _ in range(3):
            torch.testing.assert_close(net(x), plain * 2)
        monkeypatch.undo()
        torch.testing.assert_close(net(x), plain)
    assert handle.engine.report.calls["fused"] >= 2
