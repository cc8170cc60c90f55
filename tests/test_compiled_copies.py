"""What a copy of a compiled module is: a module of its own, uncompiled."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompiledModule, compile
from tests.models import UNet
from tests.test_compiled import CPU, used

pytestmark = pytest.mark.usefixtures("no_gradients")


COPIES: dict[str, Callable[[CompiledModule], nn.Module]] = {
    "deepcopy": lambda handle: copy.deepcopy(handle.module),
    "deepcopy of the handle": copy.deepcopy,
    "deepcopy of a copy": lambda handle: copy.deepcopy(copy.deepcopy(handle.module)),
    "deepcopy inside another": lambda handle: copy.deepcopy(nn.Sequential(handle.module))[0],
    "pickle": lambda handle: pickle.loads(pickle.dumps(handle.module)),
}


@pytest.mark.parametrize("name", COPIES)
def test_a_copy_is_an_uncompiled_module_with_weights_of_its_own(name: str) -> None:
    handle = used()
    inputs = UNet.inputs()
    expected = UNet.forward(handle.module, *inputs)
    calls = dict(handle.engine.report.calls)
    twin = COPIES[name](handle)
    assert type(twin) is UNet and torch.equal(twin(*inputs), expected)
    assert not {p.data_ptr() for p in twin.parameters()} & {p.data_ptr() for p in handle.module.parameters()}
    for parameter in twin.parameters():
        parameter.zero_()
    assert not twin(*inputs).any() and handle.engine.report.calls == calls
    torch.testing.assert_close(handle(*inputs), expected, rtol=1e-4, atol=1e-5)
    handle.uninstall()
    again = used(twin)
    assert not again(*inputs).any() and "forward" not in again.uninstall().__dict__


@pytest.mark.parametrize("copied", [copy.deepcopy, lambda forward: pickle.loads(pickle.dumps(forward))])
def test_a_forward_that_is_copied_alone_is_that_of_a_module_of_its_own(copied: Callable[[Any], Any]) -> None:
    handle, inputs = used(), UNet.inputs()
    expected = UNet.forward(handle.module, *inputs)
    own = copied(handle.module.forward)
    for parameter in handle.module.parameters():
        parameter.zero_()
    assert torch.equal(own(*inputs), expected)


def test_an_instances_own_forward_is_copied_with_it() -> None:
    net = UNet()
    net.forward = net.conv_in.forward  # type: ignore[method-assign]
    handle, x = compile(net, CPU), torch.randn(2, 4, 8, 8)
    expected = handle(x)
    twin = copy.deepcopy(net)
    assert torch.equal(twin(x), expected)
    twin.conv_in.weight.zero_()
    twin.conv_in.bias.zero_()
    assert not twin(x).any() and handle(x).any()


class Scaled(nn.Linear):
    """A layer with an attribute that steers it."""

    scale = 1.0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * self.scale


@pytest.mark.parametrize("make", [copy.copy, lambda net: net._replicate_for_data_parallel()], ids=["copy", "replica"])
@pytest.mark.parametrize("own", [False, True], ids=["the class's forward", "a forward of its own"])
def test_a_shallow_copy_computes_with_its_own_attributes(make: Callable[[nn.Module], nn.Module], own: bool) -> None:
    net, other, x = Scaled(4, 4), nn.Linear(4, 4), torch.randn(2, 4)
    if own:
        net.forward = lambda y: other(y)  # type: ignore[method-assign]
    expected = net(x)
    handle = compile(net, CPU)
    handle(x), handle(x)
    for thing in (net, handle.module):
        twin = make(thing)
        for parameter in ("weight", "bias"):
            setattr(twin, parameter, getattr(net, parameter))
        twin.scale = 3.0
        for _ in range(2):
            torch.testing.assert_close(twin(x), expected if own else expected * 3)
            twin.register_forward_hook(lambda *args: None)
        torch.testing.assert_close(net(x), expected)
    assert copy.copy(handle)(x).shape == expected.shape
    mine = compile(twin, CPU)
    assert mine is not handle and mine.engine is not handle.engine
    mine.uninstall()
    assert ("forward" in twin.__dict__) is own and compile(net) is handle
    handle.uninstall()
    assert ("forward" in net.__dict__) is own


def test_a_module_that_runs_the_forward_of_a_compiled_one() -> None:
    inner, outer, x = nn.Linear(4, 4), nn.Linear(4, 4), torch.randn(2, 4)
    compile(inner, CPU)
    outer.forward = inner.forward  # type: ignore[method-assign]
    for _ in range(2):
        torch.testing.assert_close(outer(x), nn.Linear.forward(inner, x))


def test_what_is_pickled_is_read_where_this_package_is_not_installed() -> None:
    net = nn.Linear(4, 4)
    compile(net, CPU)(torch.randn(2, 4))
    assert b"sfast_core" not in pickle.dumps(net)
