"""How a weight lies is asked again, and such a weight lies as it does."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

#: What a forward asks of a convolution's weight.
ASKED: dict[str, Callable[[torch.Tensor], bool]] = {
    "is_contiguous": torch.Tensor.is_contiguous,
    "in a memory format": lambda weight: not weight.is_contiguous(memory_format=torch.channels_last),
    "stride": lambda weight: weight.stride(1) == 9,
    "of a view": lambda weight: weight.detach().is_contiguous(),
}


@pytest.mark.parametrize("name", ASKED)
def test_a_forward_that_steers_by_how_a_weight_lies(name: str) -> None:
    ask = ASKED[name]
    net = Forward(
        lambda net, x: net.conv(x) * (2 if ask(net.conv.weight) else 3), conv=nn.Conv2d(4, 4, 3)
    ).requires_grad_(False)
    x, weight = torch.randn(1, 4, 8, 8), net.conv.weight
    assert isinstance(weight, nn.Parameter)
    expected = [net(x).clone(), net(x) / 2 * 3]
    plain = weight.stride()
    compiled = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected[0])
        assert weight.stride() == plain and compiled.engine.report.calls["fused"] == 2
        weight.data = weight.data.contiguous(memory_format=torch.channels_last)
        for _ in range(3):
            torch.testing.assert_close(compiled(x), expected[1])
        assert compiled.engine.report.calls["traced"] == 2


class Unset(nn.Conv2d):
    """As ComfyUI's layers, which are made without values."""

    def reset_parameters(self) -> None:
        """Nothing: they are loaded, or set."""


def test_a_layer_that_is_made_in_the_call() -> None:
    """As in jankhidiffusion's RAUNet: PyTorch asks a new layer's parameters whether they have a gradient."""

    def strided(net: nn.Module, x: torch.Tensor) -> torch.Tensor:
        made = Unset(4, 4, 3, stride=(2, 2), device=x.device)
        made.weight, made.bias = net.conv.weight, net.conv.bias
        result: torch.Tensor = made(x)
        return result

    net = Forward(strided, conv=nn.Conv2d(4, 4, 3)).requires_grad_(False)
    inputs = [torch.randn(1, 4, 8, 8) for _ in range(4)]
    expected = [net(x) for x in inputs]
    compiled = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for x, result in zip(inputs, expected, strict=True):
            torch.testing.assert_close(compiled(x), result)
        assert dict(compiled.engine.report.calls) == {"traced": 1, "fused": 3}, compiled.engine.report.reasons
