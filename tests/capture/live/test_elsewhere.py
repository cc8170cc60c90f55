"""Code that brings a tensor from another device at each call runs live, and nothing else does: no weight of the model's
is there.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.taken_in import Host

ELSEWHERE = torch.empty(8, device="meta")  # what a tensor in main memory is to a GPU


def test_a_function_of_others_that_brings_a_tensor() -> None:
    """It alone: another one is a part of the program as ever."""
    host = Host()

    def brings(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, options: dict[str, Any]) -> Any:
        return q * torch.full_like(ELSEWHERE, 1.5, device=q.device), k, v

    def plain(h: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        return h * 1.1, skip

    counted = host.check(lambda: lambda step: {"patches": {"attn": [brings], "output": [plain]}}, calls=6)
    assert counted == {"eager": 1, "traced": 1, "fused": 4}, host.engine.report.text()
    assert host.last == (1, 2), host.engine.report.text()


def test_a_layer_that_brings_a_tensor() -> None:
    class Layer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.kept = [ELSEWHERE]  # a list: no weight

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * torch.full_like(self.kept[0], 1.5, device=x.device)

    net = nn.Sequential(nn.Linear(8, 8), Layer(), nn.Linear(8, 8)).eval()
    fast, x = compile(net, CompileConfig(allow_cpu=True)), torch.randn(2, 8)
    with torch.inference_mode():
        expected = type(net).forward(net, x)
        for _ in range(4):
            torch.testing.assert_close(fast(x), expected)
    (signature,) = fast.engine.report.signatures
    assert fast.engine.report.calls["fused"] >= 2 and len(signature.live) == 1, fast.engine.report.text()
