"""What changed below a module since its trace."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import StructureGuard
from tests.models import UNet


class Processor:
    """What diffusers' attention layers keep in an attribute."""

    def __init__(self, scale: float = 1.0) -> None:
        self.scale, self.scales, self.calls, self.seen = scale, [1.0], 0, torch.zeros(1)
        self.inner: Any = torch.neg
        self.later: Any = None

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) * self.scale * getattr(self, "scales", ())[0] + (self.seen if self.later is None else self.later)


class LoraLinear(nn.Linear):
    """A host's own Linear that may be given a child later."""


class ScaledLinear(nn.Linear):
    """A node's own Linear, which computes with a number."""

    scale = 1.0
    steps = 0


class Base(nn.Module):
    def _forward(self, x: torch.Tensor) -> torch.Tensor:
        return x


class Block(Base):
    factor = 1.0
    _uses = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self._forward(x) * self.factor


class OtherBlock(Block):
    pass


def closing_over(processor: Processor) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: processor(x)


def counting() -> Callable[[torch.Tensor], torch.Tensor]:
    """A function that knows a number of its own, a list, and another function that knows one."""
    step, scales, kept = 0, [1.0], {"last": [torch.ones(1)]}
    inner = (lambda factor: lambda x: x * factor[0])([2.0])

    def forward(x: torch.Tensor) -> torch.Tensor:
        nonlocal step
        step += 1
        return inner(x) * scales[0] * step * kept["last"][-1]

    return forward


def known(function: Any, name: str) -> Any:
    """What a function knows by that name."""
    return function.__closure__[function.__code__.co_freevars.index(name)].cell_contents


def model() -> nn.Module:
    net = UNet()
    attention = net.blocks[0].attn1
    attention.settings = SimpleNamespace(heads=2)
    attention.processor, attention.scales, attention.table, attention.later = Processor(), {"lora": [1.0, 2.0]}, torch.ones(2), None
    net.res1.skip = nn.Sequential(LoraLinear(4, 4), nn.Dropout())
    net.block, net.scaled = Block(), ScaledLinear(4, 4, bias=False)
    net.blocks[1].attn1.forward, net.blocks[1].attn2.forward = Processor(3.0).__call__, closing_over(Processor(3.0))
    net.block.register_buffer("bank", None)
    net.block._forward = counting()
    return net.eval()


HOOKS: list[Any] = []  #: of all modules, which a test takes off again


def set_attribute(path: str, name: str, value: Any) -> Callable[[nn.Module], Any]:
    return lambda net: setattr(net.get_submodule(path), name, value() if callable(value) else value)


CHANGES: dict[str, Callable[[nn.Module], Any]] = {
    "a child replaced": set_attribute("blocks.0", "norm1", lambda: nn.LayerNorm(32)),
    "a child of the root replaced": set_attribute("", "conv_in", lambda: nn.Conv2d(4, 16, 3)),
    "a child of a list": lambda net: net.blocks.append(nn.Identity()),
    "a child gone": lambda net: delattr(net.res1, "skip"),
    "a child of a host's own layer": lambda net: net.res1.skip[0].add_module("lora", nn.Linear(4, 4)),
    "children in another order": lambda net: net.blocks[0]._modules.update(norm1=net.blocks[0].norm2, norm2=net.blocks[0].norm1),
    "an instance's forward": set_attribute("blocks.0", "forward", lambda: lambda *args: args[0]),
    "a plain layer's forward": set_attribute("blocks.0.norm1", "forward", lambda: lambda *args: args[0]),
    "how a convolution pads": set_attribute("conv_in", "padding_mode", "circular"),
    "how much it pads": set_attribute("conv_in", "padding", (0, 1)),
    "how far apart its taps are": set_attribute("conv_in", "dilation", (2, 2)),
    "what pads, within a convolution": set_attribute("conv_in", "_conv_forward", lambda: lambda *args: args[0]),
    "a LayerNorm's epsilon": set_attribute("blocks.0.norm1", "eps", 1.0),
    "a GroupNorm's epsilon": set_attribute("res1.norm1", "eps", 1.0),
    "a number of a node's own layer": set_attribute("scaled", "scale", 2.0),
    "a block's class": set_attribute("block", "__class__", lambda: OtherBlock),
    "a plain layer's class": set_attribute("scaled", "__class__", lambda: nn.Linear),
    "a method of one block": set_attribute("block", "_forward", lambda: lambda x: x),
    "a bias where there was none": set_attribute("scaled", "bias", lambda: nn.Parameter(torch.ones(4))),
    "a buffer where there was none": lambda net: net.block._buffers.update(bank=torch.ones(2)),
    "a forward hook": lambda net: net.blocks[0].register_forward_hook(lambda *args: None),
    "a plain layer's hook": lambda net: net.conv_in.register_forward_pre_hook(lambda *args: None),
    "training": lambda net: net.blocks[0].train(),
    "training of one dropout": lambda net: net.res1.skip[1].train(),
    "training of the root alone": set_attribute("", "training", True),
    "a number": set_attribute("blocks.0.attn1", "heads", 4),
    "a number that was None": set_attribute("blocks.0.attn1", "later", 4),
    "a processor": set_attribute("blocks.0.attn1", "processor", Processor),
    "a number in a dict's list": lambda net: net.blocks[0].attn1.scales["lora"].append(3.0),
    "a number of a processor": lambda net: setattr(net.blocks[0].attn1.processor, "scale", 2.0),
    "a number in a processor's list": lambda net: net.blocks[0].attn1.processor.scales.append(2.0),
    "a function that a processor keeps": lambda net: setattr(net.blocks[0].attn1.processor, "inner", torch.abs),
    "an attribute of a processor gone": lambda net: delattr(net.blocks[0].attn1.processor, "scale"),
    "a number of the object that a forward belongs to": lambda net: setattr(net.blocks[1].attn1.forward.__self__, "scale", 2.0),
    "a number of an object that a forward knows": lambda net: setattr(net.blocks[1].attn2.forward.__closure__[0].cell_contents, "scale", 2.0),
    "what an object keeps, None before": lambda net: setattr(net.blocks[0].attn1.processor, "later", torch.ones(1)),
    "a number that a function counts": lambda net: net.block._forward(torch.ones(1)),
    "a list that a function knows": lambda net: known(net.block._forward, "scales").append(1.0),
    "a tensor in a list that a function knows": lambda net: known(net.block._forward, "kept")["last"].append(torch.ones(1)),
    "a list of a function that a function knows": lambda net: known(known(net.block._forward, "inner"), "factor").append(1.0),
    "a hook of all modules": lambda net: HOOKS.append(nn.modules.module.register_module_forward_hook(lambda *args: None)),
    "what a namespace has": lambda net: setattr(net.blocks[0].attn1.settings, "heads", 4),
    "an attribute added": set_attribute("blocks.0", "added", 1),
    "an attribute gone": lambda net: delattr(net.blocks[0].attn1, "processor"),
    "a method of the root": set_attribute("", "_embed", lambda: lambda *args: None),
    "an attribute of the root": set_attribute("", "mode", "fast"),
    "the weights' dtype": lambda net: net.half(),
}

#: name: class, attribute and value of what is changed for all layers of a class
CHANGES_OF_CLASSES: dict[str, tuple[type, str, Any]] = {
    "forward": (Block, "forward", lambda self, x: x),
    "a private method that it inherits": (Base, "_forward", lambda self, x: x),
    "a private method that it inherited": (Block, "_forward", lambda self, x: x),
    "a static method": (Block, "helper", staticmethod(lambda x: x)),
    "a number": (Block, "factor", 3.0),
    "a plain layer's forward": (nn.Conv2d, "_conv_forward", lambda self, x, weight, bias: x),
    "a processor's": (Processor, "__call__", lambda self, x: x),
    "the root's class": (UNet, "forward", lambda self, x: x),
}
KEPT_CLASSES: dict[str, tuple[type, str, Any]] = {
    "an equal number": (Block, "factor", float("1.0")),
    "a private number": (Block, "_uses", 1),
    "what is no method": (Block, "registry", object()),
    "another class": (OtherBlock, "factor", 3.0),
}

KEPT: dict[str, Callable[[nn.Module], Any]] = {
    "nothing": lambda net: None,
    "an equal value": set_attribute("blocks.0.attn1", "heads", 2),
    "an equal padding": lambda net: setattr(net.conv_in, "padding", tuple(net.conv_in.padding)) or setattr(net.conv_in, "padding_mode", "".join("zeros")),
    "an equal epsilon": set_attribute("blocks.0.norm1", "eps", lambda: float("1e-5")),
    "an equal container": set_attribute("blocks.0.attn1", "scales", lambda: {"lora": [1.0, 2.0]}),
    "a parameter": set_attribute("blocks.0.norm1", "weight", lambda: nn.Parameter(torch.zeros(32))),
    "values": lambda net: net.requires_grad_(False).conv_in.weight.zero_(),
    "an attribute that went and came": lambda net: setattr(net.res1.skip[1], "p", net.res1.skip[1].__dict__.pop("p")),
    "an equal number of a processor": lambda net: setattr(net.blocks[0].attn1.processor, "scale", float("1.0")),
    "what no code reads in a processor": lambda net: setattr(net.blocks[0].attn1.processor, "calls", 1),
    "an equal list that a function knows": lambda net: known(net.block._forward, "scales").__setitem__(0, float("1.0")),
    "a tensor of a processor": lambda net: setattr(net.blocks[0].attn1.processor, "seen", torch.ones(1)),
    "a tensor": set_attribute("blocks.0.attn1", "table", lambda: torch.zeros(2)),
    "the root's own forward": set_attribute("", "forward", lambda: lambda *args: None),
    "the root's own private one": set_attribute("", "_forward", lambda: lambda *args: None),
    "the root's own hooks": lambda net: net.register_forward_hook(lambda *args: None),
    "private": set_attribute("blocks.0", "_seen", 1),
    "a hook that came and went": lambda net: net.conv_in.register_forward_hook(lambda *args: None).remove(),
}


@pytest.fixture(autouse=True)
def _without_hooks() -> Iterator[None]:
    yield
    while HOOKS:
        HOOKS.pop().remove()


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_noticed_and_stays_noticed(name: str) -> None:
    net = model()
    guard = StructureGuard(net)
    assert guard.changed() is None
    CHANGES[name](net)
    first = guard.changed()
    assert first and guard.changed() == first
    assert StructureGuard(net).changed() is None


@pytest.mark.parametrize("name", KEPT)
def test_what_steers_nothing_is_no_change(name: str) -> None:
    net = model()
    guard = StructureGuard(net)
    KEPT[name](net)
    assert guard.changed() is None and guard.changed() is None


@pytest.mark.parametrize("name", CHANGES_OF_CLASSES)
def test_a_change_of_a_class_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    guard = StructureGuard(model())
    owner, attribute, value = CHANGES_OF_CLASSES[name]
    monkeypatch.setattr(owner, attribute, value, raising=False)
    assert guard.changed() == guard.changed() == f"{owner.__name__}.{attribute} changed"
    monkeypatch.undo()
    assert guard.changed() is None


@pytest.mark.parametrize("name", KEPT_CLASSES)
def test_what_steers_nothing_in_a_class_is_no_change(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    guard = StructureGuard(model())
    monkeypatch.setattr(*KEPT_CLASSES[name], raising=False)
    assert guard.changed() is None and guard.changed() is None


def test_what_a_class_has_that_cannot_be_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Block, "pair", (torch.zeros(2), 1), raising=False)
    guard = StructureGuard(model())
    monkeypatch.setattr(Block, "pair", (torch.zeros(2), 1))
    assert guard.changed() == "Block.pair changed"


def test_the_roots_class() -> None:
    net = model()
    guard = StructureGuard(net)
    net.__class__ = type("Other", (type(net),), {})
    assert guard.changed() == "the module's class changed"


def test_the_change_is_named() -> None:
    net = model()
    guard = StructureGuard(net)
    net.blocks[1].attn2.heads = 4
    assert "blocks.1.attn2.heads" in str(guard.changed())


def test_hooks_of_all_modules_are_told() -> None:
    HOOKS.append(nn.modules.module.register_module_forward_pre_hook(lambda *args: None))
    assert StructureGuard(model()).hooked == "all modules have forward hooks"


def test_hooks_that_were_there_before_are_told() -> None:
    net = model()
    hook = net.down.register_forward_hook(lambda *args: None)
    guard = StructureGuard(net)
    assert guard.hooked == "down has forward hooks" and guard.changed() is None
    hook.remove()
    assert guard.changed() and StructureGuard(net).hooked is None


@pytest.mark.parametrize("stateful", [True, False])
def test_hooks_that_keep_state_are_told(stateful: bool) -> None:
    """diffusers has its own kind of hooks, which are no forward hooks of PyTorch's."""
    net = model()
    hook = SimpleNamespace(_is_stateful=stateful)
    net.down.__dict__["_diffusers_hook"] = SimpleNamespace(hooks={"cache": hook})
    assert StructureGuard(net).hooked == ("down has a hook of diffusers' that keeps state from step to step" if stateful else None)


def test_a_guard_below_a_module_keeps_no_module_alive() -> None:
    net = model()
    net.__dict__["_compiled_state"] = StructureGuard(net)
    alive = [weakref.ref(net), weakref.ref(net.blocks[0]), weakref.ref(net.conv_in.weight)]
    gc.collect()
    gc.disable()
    try:
        del net
        assert [ref() for ref in alive] == [None, None, None]
    finally:
        gc.enable()
