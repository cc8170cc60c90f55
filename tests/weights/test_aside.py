"""Weights that have other strides for programs get their own again in the middle of what others watch: a transform, a
tracer, a mode.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils.flop_counter import FlopCounterMode

from sfast_core import CompileConfig, CompiledModule, compile

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),
    pytest.mark.filterwarnings("ignore::FutureWarning"),
]
X = torch.randn(2, 4, 6, 6)
Call = Callable[[torch.Tensor], torch.Tensor]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = nn.Conv2d(4, 8, 3, padding=1), nn.Conv2d(8, 4, 3, padding=1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.two(torch.relu(self.one(x)))


def made() -> Net:
    torch.manual_seed(0)
    return Net().requires_grad_(False)


@pytest.fixture
def handle() -> CompiledModule:
    handle = compile(made(), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(X), handle(X)
    assert not handle.module.one.weight.is_contiguous()
    return handle


def _dual(net: Call) -> torch.Tensor:
    with torch.autograd.forward_ad.dual_level():
        made = net(torch.autograd.forward_ad.make_dual(X, torch.ones_like(X)))
        return torch.autograd.forward_ad.unpack_dual(made).tangent


def _flops(net: Call) -> torch.Tensor:
    with FlopCounterMode(display=False) as counter:
        net(X)
    return torch.tensor(counter.get_total_flops())


def _fake(net: Call) -> torch.Tensor:
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        made = net(mode.from_tensor(X))
    return torch.tensor(made.shape)


#: name: what another makes of a function, computed
OTHERS: dict[str, Callable[[Any], torch.Tensor]] = {
    "grad": lambda net: torch.func.grad(lambda x: net(x).sum())(X),
    "vmap": lambda net: torch.func.vmap(net)(torch.stack([X, X * 2])),
    "jvp": lambda net: torch.func.jvp(net, (X,), (torch.ones_like(X),))[1],
    "functional_call": lambda net: torch.func.functional_call(
        net, {name: value * 2 for name, value in net.named_parameters()}, (X,)
    ),
    "forward mode": _dual,
    "torch.jit.trace": lambda net: torch.jit.trace(net, X)(X * 2),
    "torch.export": lambda net: torch.export.export(net, (X,)).module()(X * 2),
    "make_fx": lambda net: make_fx(lambda x: net(x))(X)(X * 2),
    "flops": _flops,
    "fake tensors": _fake,
}


@pytest.mark.parametrize("name", OTHERS)
def test_others_see_the_module_as_it_was(handle: CompiledModule, name: str) -> None:
    twin = made()
    with torch.no_grad():
        torch.testing.assert_close(OTHERS[name](handle.module), OTHERS[name](twin))
    before = handle.engine.report.calls["fused"]
    with torch.no_grad():
        torch.testing.assert_close(handle(X), twin(X), rtol=1e-4, atol=1e-5)
    assert handle.engine.report.calls["fused"] == before + 1


def test_a_module_that_is_let_go_inside_a_transform(handle: CompiledModule) -> None:
    def last(x: torch.Tensor) -> torch.Tensor:
        handle.uninstall()
        return x * 2

    assert torch.equal(torch.func.vmap(last)(X), X * 2)
    assert handle.module.one.weight.is_contiguous()
