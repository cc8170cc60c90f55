"""Transformers' layers of PyTorch's whose faster way gives something else than the one that is recorded."""

from __future__ import annotations

import copy
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
    net.layer.activation = nn.ReLU()
    compared(net, handle)
    assert handle.engine.report.calls == {"traced": 3, "fused": 3}


@pytest.mark.parametrize("activation", ["relu", "gelu", nn.ReLU(), nn.GELU(), nn.functional.silu])
def test_what_both_ways_compute_is_fused(activation: Callable[..., torch.Tensor] | str) -> None:
    net = Net(activation).eval()
    handle = compile(net, CompileConfig(allow_cpu=True))
    compared(net, handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}


MADE: dict[str, Callable[[], nn.Module]] = {
    "an attention": lambda: nn.MultiheadAttention(8, 2, batch_first=True),
    "a layer": lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True),
    "several layers": lambda: nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), 2),
}
PADDING = {
    "a row's end": torch.tensor([[False] * 4 + [True], [False] * 2 + [True] * 3]),
    "a whole row": torch.tensor([[False] * 5, [True] * 5]),
    "a row's middle": torch.tensor([[False, True, False, False, False], [False] * 5]),
}


class Masked(nn.Module):
    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: torch.Tensor, padding: torch.Tensor | None) -> torch.Tensor:
        if isinstance(self.layer, nn.MultiheadAttention):
            result: torch.Tensor = self.layer(x, x, x, key_padding_mask=padding, need_weights=False)[0]
        else:
            result = self.layer(x * 2, src_key_padding_mask=padding)
        return result * (2 if result.is_contiguous() else 1)


@pytest.mark.parametrize("padding", [*PADDING, None])
@pytest.mark.parametrize("name", MADE)
def test_what_only_the_fast_way_does(name: str, padding: str | None) -> None:
    net = Masked(MADE[name]()).eval()
    other = copy.deepcopy(net)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            given = X, None if padding is None else PADDING[padding]
            got, expected = handle(*given), other(*given)
            torch.testing.assert_close(got, expected, equal_nan=True)
            assert got.stride() == expected.stride()
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}
