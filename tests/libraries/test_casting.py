"""Layers that cast their weights in front of each call and back behind it, as diffusers' layerwise casting does: the
casts are part of the program.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from sfast_core import CompileConfig, CompiledModule, compile

STORED = torch.float8_e4m3fn


class Layer(nn.Linear):
    """With a hook around its call; ``left``: which leaves its weights as they were computed with."""

    left = False

    def __init__(self, *size: int) -> None:
        super().__init__(*size)
        self.register_buffer("seen", torch.randn(size[0]))
        self.requires_grad_(False).to(STORED)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.to(dtype=torch.float32, non_blocking=False)
        out = super().forward(x * self.seen)
        if not self.left:
            self.to(dtype=STORED, non_blocking=False)
        return out


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.up, self.down = Layer(8, 16), Layer(16, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(F.gelu(self.up(x)))


def check(handle: CompiledModule) -> None:
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        torch.testing.assert_close(handle(x), type(handle.module).forward(handle.module, x))


def test_its_weights_stay_as_they_lie() -> None:
    handle = compile(Net(), CompileConfig(allow_cpu=True))
    layer: Any = handle.module.up
    before = layer.weight
    x = torch.randn(2, 3, 8)
    with torch.no_grad():
        expected = Net()(x)
        torch.testing.assert_close(handle(x), expected)
        torch.testing.assert_close(handle(x), expected)
    report = handle.engine.report
    assert report.calls == {"traced": 1, "fused": 1}, handle.report().text()
    assert report.signatures[-1].passes["fuse_linear"] == 1, report.signatures[-1].passes
    assert layer.weight is before and {tensor.dtype for tensor in layer.state_dict().values()} == {STORED}
    assert nn.Module.to.__module__ == "torch.nn.modules.module"


def test_what_changes_is_seen() -> None:
    handle = compile(Net(), CompileConfig(allow_cpu=True))
    check(handle)
    layer: Any = handle.module.up
    layer.weight = nn.Parameter(torch.randn(16, 8).to(STORED), requires_grad=False)
    check(handle)
    layer.weight.data = torch.randn(16, 8).to(STORED)
    check(handle)
    layer.seen = torch.randn(8).to(STORED)
    check(handle)
    assert not handle.engine.report.calls["eager"], handle.report().text()


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_one_that_leaves_its_weights_cast_leaves_them_so(mode: Any) -> None:
    net = Net()
    net.down.left = True
    handle = compile(net, CompileConfig(allow_cpu=True))
    for _ in range(4):
        net.down.to(STORED)
        with mode():
            handle(torch.randn(2, 3, 8))
        assert net.down.weight.dtype == net.down.seen.dtype == torch.float32 and isinstance(
            net.down.weight, nn.Parameter
        )


def test_a_failure_in_between_leaves_the_layer_as_it_was() -> None:
    class Fails(Layer):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.to(torch.float32)
            raise ValueError("in between")

    net = Net()
    net.down = Fails(16, 8)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad(), pytest.raises(ValueError, match="in between"):
        handle(torch.randn(2, 3, 8))
    assert isinstance(net.down.weight, nn.Parameter) and net.down.weight.dtype == torch.float32  # as without us


def test_with_diffusers_own_hooks() -> None:
    hooks = pytest.importorskip("diffusers.hooks", reason="needs diffusers with layerwise casting")
    if not hasattr(hooks, "apply_layerwise_casting"):
        pytest.skip("this diffusers has no layerwise casting")
    net = nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 8)).requires_grad_(False)
    hooks.apply_layerwise_casting(net, STORED, torch.float32)
    handle = compile(net, CompileConfig(allow_cpu=True))
    check(handle), check(handle)
    assert handle.engine.report.calls == {"traced": 1, "fused": 1}, handle.report().text()
    assert net[0].weight.dtype == STORED
