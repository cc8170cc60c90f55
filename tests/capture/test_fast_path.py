"""A transformer's layer of PyTorch's whose faster way computes something else than the one that is recorded."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

X = 5 * torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


class Net(nn.Module):
    def __init__(self, activation: Callable[..., torch.Tensor] | str) -> None:
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, activation=activation, batch_first=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.layer(x)
        return result


def compared(net: Net, handle: nn.Module) -> None:
    """Two calls, with what an uncompiled copy makes."""
    other = Net("relu").eval()
    other.load_state_dict(net.state_dict())
    vars(other.layer).update(activation=net.layer.activation, activation_relu_or_gelu=net.layer.activation_relu_or_gelu)
    with torch.no_grad():
        for _ in range(2):
            torch.testing.assert_close(handle(X), other(X))


def test_an_activation_that_the_fast_way_does_not_look_at() -> None:
    net = Net("relu").eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    compared(net, handle)
    net.layer.activation = torch.tanh
    compared(net, handle)
    assert handle.engine.report.calls == {"traced": 2, "fused": 1, "eager": 1}
    assert any("activation" in reason for reason in handle.engine.report.reasons)
    net.layer.activation = nn.ReLU()
    compared(net, handle)
    assert handle.engine.report.calls["eager"] == 1


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.ReLU(), nn.GELU(), nn.functional.silu])
def test_what_both_ways_compute_is_fused(activation: Callable[..., torch.Tensor] | str) -> None:
    net = Net(activation).eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    compared(net, handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}
