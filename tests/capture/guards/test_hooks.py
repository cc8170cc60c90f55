"""Hooks may do anything besides computing: which there are, and whether others have come."""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Guard
from tests.models import UNet
from tests.tracing import guarded

HOOKS: list[Any] = []  #: of all modules, which a test takes off again


@pytest.fixture(autouse=True)
def _without_hooks() -> Iterator[None]:
    yield
    while HOOKS:
        HOOKS.pop().remove()


def model() -> Any:
    return UNet().requires_grad_(False)


def guard_of(net: nn.Module) -> Guard:
    return guarded(net, *UNet.inputs())[2]


NEW: dict[str, Callable[[Any], Any]] = {
    "a block's": lambda net: net.blocks[0].register_forward_hook(lambda *args: None),
    "a plain layer's": lambda net: net.conv_in.register_forward_pre_hook(lambda *args: None),
    "with keywords": lambda net: net.down.register_forward_hook(lambda *args: None, with_kwargs=True),
    "one that is always called": lambda net: net.down.register_forward_hook(lambda *args: None, always_call=True),
    "of all modules": lambda net: HOOKS.append(nn.modules.module.register_module_forward_hook(lambda *args: None)),
    "of all modules, before": lambda net: HOOKS.append(
        nn.modules.module.register_module_forward_pre_hook(lambda *args: None)
    ),
}


@pytest.mark.parametrize("name", NEW)
def test_a_new_hook_is_noticed(name: str) -> None:
    net = model()
    guard = guard_of(net)
    assert guard.hooked is None and guard.changed(net) is None
    NEW[name](net)
    first = guard.changed(net)
    assert first and "forward hooks" in first and guard.changed(net) == first
    later = guard_of(net)
    assert later.hooked and "forward hooks" in later.hooked and later.changed(net) is None


def test_hooks_of_all_modules_are_told() -> None:
    HOOKS.append(nn.modules.module.register_module_forward_pre_hook(lambda *args: None))
    assert guard_of(model()).hooked == "all modules have forward hooks"


def test_hooks_that_were_there_before_are_told() -> None:
    net = model()
    hook = net.down.register_forward_hook(lambda *args: None)
    guard = guard_of(net)
    assert guard.hooked == "down has forward hooks" and guard.changed(net) is None
    hook.remove()
    assert guard.changed(net) and guard_of(net).hooked is None


def test_one_hook_in_the_place_of_another_is_noticed() -> None:
    net = model()
    hook = net.down.register_forward_hook(lambda *args: None)
    guard = guard_of(net)
    hook.remove()
    net.down.register_forward_hook(lambda *args: None)
    assert guard.changed(net) == "the forward hooks of down changed"


def test_the_roots_own_hooks_are_its_callers_business() -> None:
    net = model()
    net.register_forward_hook(lambda *args: None)
    guard = guard_of(net)
    net.register_forward_pre_hook(lambda *args: None)
    assert guard.hooked is None and guard.changed(net) is None


def test_hooks_of_a_module_that_is_not_called_are_none() -> None:
    net = model()
    net.spare = nn.Linear(1, 1)
    net.spare.register_forward_hook(lambda *args: None)
    assert guard_of(net).hooked is None


def test_a_hook_that_came_and_went_is_none() -> None:
    net = model()
    guard = guard_of(net)
    net.conv_in.register_forward_hook(lambda *args: None).remove()
    assert guard.changed(net) is None


def test_backward_hooks_are_none() -> None:
    net = model()
    guard = guard_of(net)
    net.conv_in.register_full_backward_hook(lambda *args: None)
    assert guard.changed(net) is None and guard_of(net).hooked is None


def handing_on() -> Any:
    """A hook as transformers has to collect hidden states."""
    module = types.ModuleType("transformers.utils.output_capturing")
    exec("def hook(module, args, output):\n    return None", vars(module))
    return vars(module)["hook"]


def test_a_hook_that_only_hands_on_is_transparent() -> None:
    net = model()
    guard = guard_of(net)
    hook = net.down.register_forward_hook(handing_on())
    assert guard.changed(net) is None
    later = guard_of(net)
    assert later.hooked is None
    hook.remove()
    assert later.changed(net) is None
    net.down.register_forward_hook(handing_on())
    net.down.register_forward_hook(lambda *args: None)
    assert guard.changed(net) == later.changed(net) == "the forward hooks of down changed", "beside one that isn't"
    assert guard_of(net).hooked == "down has forward hooks"


@pytest.mark.parametrize("stateful", [True, False])
@pytest.mark.parametrize("where", ["down", ""])
def test_hooks_that_keep_state_are_told(stateful: bool, where: str) -> None:
    """diffusers has its own kind of hooks, which are no forward hooks of PyTorch's."""
    net = model()
    net.get_submodule(where).__dict__["_diffusers_hook"] = SimpleNamespace(
        hooks={"cache": SimpleNamespace(_is_stateful=stateful)}
    )
    hooked = guard_of(net).hooked
    who = "down has" if where else "it has"
    assert hooked == (f"{who} a hook of diffusers' that keeps state from step to step" if stateful else None)


def test_a_hook_is_called_as_ever() -> None:
    net, seen = model(), []
    net.down.register_forward_hook(lambda module, args, output: seen.append(tuple(output.shape)))
    with torch.no_grad():
        guard_of(net)
    assert len(seen) == 1
