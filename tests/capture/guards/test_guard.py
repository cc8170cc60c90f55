"""What changed since a recorded call, in words, and what is no change."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from tests.capture.guards.guarded import (
    Attention,
    Base,
    Block,
    LoraLinear,
    Model,
    OtherBlock,
    Plain,
    Processor,
    X,
    guard_of,
    known,
    model,
    put,
)
from tests.models import UNet
from tests.tracing import guarded

#: By what changes: how, and what the sentence has to name.
CHANGES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "a child replaced": (put("skip", "0", lambda: LoraLinear(4, 4)), "skip"),
    "a child of the root replaced": (put("", "conv", lambda: nn.Conv2d(1, 1, 3, padding=1)), "conv"),
    "a child of a list": (lambda net: net.attention.append(nn.Identity()), "attention"),
    "a child gone": (lambda net: delattr(net, "spare") or delattr(net, "block"), "block"),
    "a child of a host's own layer": (lambda net: net.skip[0].add_module("lora", nn.Linear(4, 4)), "skip"),
    "children in another order": (
        lambda net: net.attention._modules.update({"0": net.attention[1], "1": net.attention[0]}),
        "attention",
    ),
    "an instance's forward": (put("block", "forward", lambda: lambda x: x), "block.forward"),
    "a plain layer's forward": (put("norm", "forward", lambda: lambda x: x), "norm.forward"),
    "how a convolution pads": (put("conv", "padding_mode", "circular"), "conv.padding_mode"),
    "how much it pads": (put("conv", "padding", (0, 1)), "conv.padding"),
    "how far apart its taps are": (put("conv", "dilation", (2, 2)), "conv.dilation"),
    "what pads, within a convolution": (
        put("conv", "_conv_forward", lambda: lambda *args: args[0]),
        "conv._conv_forward",
    ),
    "a LayerNorm's epsilon": (put("norm", "eps", 1.0), "norm.eps"),
    "a GroupNorm's epsilon": (put("group", "eps", 1.0), "group.eps"),
    "a number of a node's own layer": (put("scaled", "scale", 2.0), "scaled.scale"),
    "a block's class": (put("block", "__class__", lambda: OtherBlock), "block"),
    "a plain layer's class": (put("scaled", "__class__", lambda: nn.Linear), "scaled"),
    "a method of one block": (put("plain", "_forward", lambda: lambda x: x), "plain._forward"),
    "a bias where there was none": (put("scaled", "bias", lambda: nn.Parameter(torch.ones(4))), "scaled.bias"),
    "a buffer where there was none": (lambda net: net.plain._buffers.update(bank=torch.ones(4)), "plain.bank"),
    "training": (lambda net: net.skip.train(), "skip"),
    "training of one dropout": (lambda net: net.skip[1].train(), "skip.1.training"),
    "a number": (put("attention.0", "heads", 4), "attention.0.heads"),
    "a number's type": (put("attention.0", "heads", 2.0), "attention.0.heads"),
    "a number that was None": (put("attention.1", "later", 4), "attention.1.later"),
    "a processor of another kind": (put("attention.1", "processor", lambda: torch.neg), "attention.1.processor"),
    "a processor with another number": (
        put("attention.1", "processor", lambda: Processor(2.0)),
        "attention.1.processor",
    ),
    "a number in a dict's list": (lambda net: net.attention[0].scales["lora"].append(3.0), "attention.0.scales"),
    "a number of a processor": (
        lambda net: setattr(net.attention[0].processor, "scale", 2.0),
        "attention.0.processor.scale",
    ),
    "a number in a processor's list": (
        lambda net: net.attention[0].processor.scales.insert(0, 2.0),
        "attention.0.processor.scales",
    ),
    "a function that a processor keeps": (
        lambda net: setattr(net.attention[0].processor, "inner", torch.abs),
        "attention.0.processor.inner",
    ),
    "an attribute of a processor gone": (
        lambda net: delattr(net.attention[0].processor, "scale"),
        "attention.0.processor.scale",
    ),
    "what an object keeps, None before": (
        lambda net: setattr(net.attention[0].processor, "later", torch.ones(1)),
        "attention.0.processor.later",
    ),
    "a number of the object that a forward belongs to": (
        lambda net: setattr(net.bound.forward.__self__, "scale", 2.0),
        "scale",
    ),
    "a number of an object that a forward knows": (
        lambda net: setattr(known(net.closed.forward, "processor").cell_contents, "scale", 2.0),
        "scale",
    ),
    "a number that a function knows": (
        lambda net: setattr(known(net.block._forward, "number"), "cell_contents", 2),
        "block._forward closes over",
    ),
    "a list that a function knows": (
        lambda net: known(net.block._forward, "scales").cell_contents.insert(0, 2.0),
        "scales",
    ),
    "a list of a function that a function knows": (
        lambda net: known(known(net.block._forward, "inner").cell_contents, "factor").cell_contents.insert(0, 1.0),
        "factor",
    ),
    "what a namespace has": (lambda net: setattr(net.attention[0].settings, "heads", 4), "attention.0.settings.heads"),
    "an attribute gone": (lambda net: delattr(net.attention[0], "processor"), "attention.0.processor"),
    "a method of the root": (put("", "embed", lambda: lambda x: x), "embed"),
    "an attribute of the root": (put("", "mode", "fast"), "mode"),
}

KEPT: dict[str, Callable[[Any], Any]] = {
    "nothing": lambda net: None,
    "an equal value": put("attention.0", "heads", 2),
    "an equal padding": lambda net: (
        setattr(net.conv, "padding", tuple(net.conv.padding)) or setattr(net.conv, "padding_mode", "".join("zeros"))
    ),
    "an equal epsilon": put("norm", "eps", lambda: float("1e-5")),
    "an equal container": put("attention.0", "scales", lambda: {"lora": [1.0, 2.0], "other": 1}),
    "a parameter": put("norm", "weight", lambda: nn.Parameter(torch.zeros(4))),
    "values": lambda net: net.conv.weight.zero_(),
    "an attribute that went and came": lambda net: setattr(net.skip[1], "p", net.skip[1].__dict__.pop("p")),
    "an equal number of a processor": lambda net: setattr(net.attention[0].processor, "scale", float("1.0")),
    "what no code reads in a processor": lambda net: setattr(net.attention[0].processor, "calls", 1),
    "what no code reads in a dict": lambda net: net.attention[0].scales.update(other=2, more=3),
    "an equal list that a function knows": lambda net: known(net.block._forward, "scales").cell_contents.__setitem__(
        0, float("1.0")
    ),
    "the root's own forward": put("", "forward", lambda: lambda *args: None),
    "the root's own hooks": lambda net: net.register_forward_hook(lambda *args: None),
    "a number of the root that isn't read": put("", "steps", 1),
    "an attribute that isn't read": put("block", "added", 1),
    "a private one": put("block", "_seen", 1),
    "a child that isn't called": put("", "spare", lambda: nn.Linear(4, 4)),
    "a child that is added": lambda net: net.block.add_module("added", nn.Linear(4, 4)),
    "a hook that came and went": lambda net: net.conv.register_forward_hook(lambda *args: None).remove(),
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_is_named_and_stays_noticed(name: str) -> None:
    net = model()
    guard = guard_of(net)
    assert guard.changed(net) is None
    change, words = CHANGES[name]
    change(net)
    first = guard.changed(net)
    assert first and words in first and guard.changed(net) == first
    try:
        net(X)
    except (AttributeError, TypeError):  # what was taken away is missed
        return
    _, _, later = guarded(net, X)
    assert later.changed(net) is None


@pytest.mark.parametrize("name", KEPT)
def test_what_steers_nothing_is_no_change(name: str) -> None:
    net = model()
    guard = guard_of(net)
    KEPT[name](net)
    assert guard.changed(net) is None and guard.changed(net) is None


#: name: class, attribute and value of what is changed for all layers of a class
CHANGES_OF_CLASSES: dict[str, tuple[type, str, Any]] = {
    "forward": (Block, "forward", lambda self, x: x),
    "a private method that it inherits": (Base, "_forward", lambda self, x: x),
    "a private method that it inherited": (Plain, "_forward", lambda self, x: x),
    "a number": (Block, "factor", 3.0),
    "a number's type": (Block, "factor", 1),
    "a plain layer's forward": (nn.Conv2d, "_conv_forward", lambda self, x, weight, bias: x),
    "a processor's": (Processor, "__call__", lambda self, x: x),
    "a processor's number, where it had one itself": (Processor, "scale", property(lambda self: 2.0)),
    "the root's class": (Model, "forward", lambda self, x: x),
    "what the root's class knows": (Model, "embed", lambda self, x: x),
}
KEPT_CLASSES: dict[str, tuple[type, str, Any]] = {
    "an equal number": (Block, "factor", float("1.0")),
    "a number that isn't read": (Block, "_uses", 1),
    "a method that isn't called": (Block, "helper", staticmethod(lambda x: x)),
    "what is no method": (Block, "registry", object()),
    "another class": (OtherBlock, "factor", 3.0),
    "a number that each has itself": (Processor, "calls", 3),
}


@pytest.mark.parametrize("name", CHANGES_OF_CLASSES)
def test_a_change_of_a_class_is_named(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    net = model()
    guard = guard_of(net)
    owner, attribute, value = CHANGES_OF_CLASSES[name]
    monkeypatch.setattr(owner, attribute, value, raising=False)
    first = guard.changed(net)
    assert first and f".{attribute} changed" in first and guard.changed(net) == first
    monkeypatch.undo()
    assert guard.changed(net) is None


@pytest.mark.parametrize("name", KEPT_CLASSES)
def test_what_steers_nothing_in_a_class_is_no_change(monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.setattr(*KEPT_CLASSES[name], raising=False)
    assert guard.changed(net) is None and guard.changed(net) is None


def test_the_roots_class() -> None:
    net = model()
    guard = guard_of(net)
    net.__class__ = type("Other", (type(net),), {})
    assert guard.changed(net) == "the class of the module changed"


def test_another_module_in_its_place() -> None:
    net = model()
    guard = guard_of(net)
    assert guard.changed(model()) == "another module is in its place"


def test_a_block_deep_in_a_unet_is_named() -> None:
    net = UNet().requires_grad_(False)
    guard = guard_of(net, *UNet.inputs())
    net.blocks[1].attn2.heads = 4
    assert guard.changed(net) == "blocks.1.attn2.heads changed"


def test_weights_of_another_dtype() -> None:
    """Weights that a trace reads are the weight store's to watch; what else is read of tensors, and was changed with
    them, is not.
    """
    net = model()
    guard = guard_of(net)
    net.half()
    assert guard.changed(net) in (None, "attention.0.table changed")


@pytest.mark.parametrize("levels", [1, 3])
def test_what_lies_deep_is_named_by_the_whole_way(levels: int) -> None:
    class Deep(nn.Module):
        def __init__(self, level: int) -> None:
            super().__init__()
            self.level = level
            self.inner = Deep(level - 1) if level else None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * (self.level + 1) if self.inner is None else self.inner(x)

    net = Deep(levels)
    guard = guard_of(net)
    net.get_submodule(".".join(["inner"] * levels)).level = 5
    assert guard.changed(net) == ".".join(["inner"] * levels) + ".level changed"


def test_each_of_many_places_is_compared() -> None:
    """They lie in flat lists: one that another one follows, and the last."""
    net = nn.Sequential(*(Attention() for _ in range(5)))
    guard = guard_of(net)
    for index, attention in enumerate(net):
        attention.heads = 3
        assert guard.changed(net) == f"{index}.heads changed"
        attention.heads = 2
        assert guard.changed(net) is None
        attention.scales["lora"][1] = 3.0
        assert guard.changed(net) == f"what is in {index}.scales.lora changed"
        attention.scales["lora"][1] = 2.0
        assert guard.changed(net) is None


def test_a_call_is_guarded_by_the_functions_that_ran_in_it() -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.wide, self.narrow = 1.0, 2.0

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.if_wide(x) if x.shape[1] > 4 else self.if_narrow(x)

        def if_wide(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.wide

        def if_narrow(self, x: torch.Tensor) -> torch.Tensor:
            return x * self.narrow

    net = Net()
    wide, narrow = guard_of(net, torch.ones(1, 8)), guard_of(net, torch.ones(1, 4))
    net.wide = 3.0
    assert wide.changed(net) == "wide changed" and narrow.changed(net) is None


def test_a_layer_with_a_forward_of_its_own_beside_one_without() -> None:
    net, box = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), [1.0]
    own = net[1].forward
    net[1].forward = lambda x: own(x) * box[0]  # type: ignore[method-assign]
    guard = guard_of(net, torch.ones(1, 4))
    assert guard.changed(net) is None
    box[0] = 2.0
    assert guard.changed(net) is not None
