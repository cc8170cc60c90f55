"""Another function in the place of one of PyTorch's: what C hands over is that one, and is not to be called twice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
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


_THROUGH_A_LINK = """
import torch
from torch import nn
from torch.nn import functional as F
from sfast_core import CompileConfig, compile

net, x, silu = nn.Sequential(nn.Linear(8, 8), nn.SiLU()).requires_grad_(False), torch.ones(2, 8), F.silu
handle = compile(net, CompileConfig(allow_cpu=True))
with torch.no_grad():
    plain = handle(x).clone()
    F.silu = lambda input, inplace=False: silu(input, inplace) * 2
    for _ in range(3):
        torch.testing.assert_close(handle(x), plain * 2)
print(torch.__file__)
"""


def test_a_pytorch_that_lies_behind_a_link(tmp_path: Path) -> None:
    """As in an environment that was moved to another disk: PyTorch's own functions were taken for others', and one in their place wasn't seen."""
    link = tmp_path / "packages"
    link.symlink_to(Path(torch.__file__).resolve().parents[1], target_is_directory=True)
    path = os.pathsep.join((str(link), str(Path(__file__).resolve().parents[2])))
    done = subprocess.run([sys.executable, "-c", _THROUGH_A_LINK], env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.startswith(str(link)), done.stdout
