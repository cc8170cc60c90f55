"""The forward that is put on and taken off: the very one that was there comes back."""

from __future__ import annotations

import copy
import functools
import gc
import pickle
import weakref
from types import MethodType
from typing import Any

import pytest
import torch

from sfast_core.hosts.hook import Hook, HookedCall, maker_of


class Unet(torch.nn.Module):
    """Adds one."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """x + 1."""
        return x + 1


def _pass(call: HookedCall) -> Any:
    return call.eager() * 10


def test_on_and_off() -> None:
    """Nothing is left on the instance."""
    unet = Unet()
    before = dict(vars(unet))
    for _ in range(20):
        hook = Hook(unet, _pass).put()
        assert unet(torch.zeros(1)).item() == 10
        hook.remove()
        hook.remove()
        assert vars(unet) == before and unet(torch.zeros(1)).item() == 1


def test_a_forward_that_was_there() -> None:
    """It is called, it is named, and it comes back as the same object."""
    unet, seen = Unet(), []

    def theirs(x: torch.Tensor) -> torch.Tensor:
        return x + 5

    unet.forward = theirs  # type: ignore[method-assign]
    hook = Hook(unet, lambda call: seen.append(call.foreign) or call.eager()).put()
    assert unet(torch.zeros(1)).item() == 5 and "another extension replaces its forward" in seen[0]
    hook.remove()
    assert vars(unet)["forward"] is theirs


def test_the_own_forward_on_the_instance() -> None:
    """Extensions that restore a forward leave it so; it is no obstacle."""
    unet, seen = Unet(), []
    unet.forward = Unet.forward.__get__(unet)  # type: ignore[method-assign]
    hook = Hook(unet, lambda call: seen.append(call.foreign)).put()
    unet(torch.zeros(1))
    hook.remove()
    assert seen == [None] and vars(unet)["forward"].__func__ is Unet.forward


def test_somebody_else_came_meanwhile() -> None:
    """Theirs stays, and it still reaches the module; what they kept of ours does nothing any more, and is no obstacle
    later.
    """
    unet, seen = Unet(), []
    hook = Hook(unet, _pass).put()
    ours = unet.forward
    theirs = functools.partial(lambda inner, x: inner(x) + 0.5, ours)
    unet.forward = theirs  # type: ignore[method-assign]
    assert unet(torch.zeros(1)).item() == 10.5
    hook.remove()
    assert vars(unet)["forward"] is theirs and unet(torch.zeros(1)).item() == 1.5
    unet.forward = ours  # type: ignore[method-assign]
    assert unet(torch.zeros(1)).item() == 1
    hook = Hook(unet, lambda call: seen.append(call.foreign)).put()
    unet(torch.zeros(1))
    hook.remove()
    assert seen == [None]


def test_another_method() -> None:
    """The layers of some text encoders aren't run by a forward."""
    unet = Unet()
    hook = Hook(unet, _pass, "extra_repr").put()
    hook.remove()
    assert "extra_repr" not in vars(unet)


def test_a_copy_of_a_hooked_module() -> None:
    """It has what ours replaced, of its own."""
    unet = Unet()
    hook = Hook(unet, _pass).put()
    saved = pickle.dumps(unet)
    for copied in (copy.deepcopy(unet), pickle.loads(saved)):
        assert copied(torch.zeros(1)).item() == 1 and copied.forward.__self__ is copied
    hook.remove()
    assert b"sfast_core" not in saved


def test_a_hook_keeps_no_module() -> None:
    """A checkpoint that is gone is freed."""
    unet = Unet()
    hook, gone = Hook(unet, _pass).put(), weakref.ref(unet)
    del unet
    gc.collect()
    assert gone() is None and hook.module is None
    hook.remove()


@pytest.mark.parametrize(
    ("module", "whose"),
    [
        ("/home/me/ComfyUI/custom_nodes/ComfyUI-TeaCache.nodes", "ComfyUI-TeaCache"),
        ("C:\\ComfyUI\\custom_nodes\\Some_x_Pack.nodes", "Some.Pack"),
        ("freeu_extension", "freeu_extension"),
    ],
)
def test_a_reason_names_the_pack_whose_function_it_is(module: str, whose: str) -> None:
    """Hosts name a pack's files by the folder that it lies in, and the reason is shown to users."""

    def forward(x: torch.Tensor) -> torch.Tensor:
        return x

    forward.__module__ = module
    assert maker_of(forward) == maker_of(functools.partial(forward)) == whose
    assert (
        maker_of(MethodType(functools.partial(forward), 1))
        == maker_of(functools.partial(MethodType(forward, 1)))
        == whose
    )
    net = torch.nn.Linear(2, 2)
    net.forward = forward  # type: ignore[method-assign, assignment]
    seen = []
    Hook(net, lambda call: seen.append(call.foreign)).put()
    net(torch.ones(1, 2))
    assert seen == [f"another extension replaces its forward ({whose})"]
