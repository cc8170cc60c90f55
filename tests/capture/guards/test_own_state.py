"""State of a model's own that is easily overlooked: what lives for a part of a call, locks, hooks, memory that NumPy
shares.
"""

from __future__ import annotations

import copy
import threading
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward


class Kept:
    """An object of a class of its own."""

    def __init__(self, **attributes: Any) -> None:
        self.__dict__.update(attributes)


def dies(net: Any, x: torch.Tensor) -> torch.Tensor:
    made = Kept()
    net.value["a"] = made
    before = len(net.value)
    del made
    return net.lin(x) * (before + 2 * len(net.value))


def locks(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.lin(x) * (2 if net.value[0].acquire(blocking=False) else 1)


def unhooks(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.lin(x)


def unhooked(net: Any) -> None:
    if net.value == ["a hook"]:
        net.value = [net.lin.register_forward_hook(lambda layer, given, made: (net.value[0].remove(), made * 2)[1])]


def by_numpy(net: Any, x: torch.Tensor) -> torch.Tensor:
    x.numpy()[0, 0] = 9.0
    return net.lin(x)


STATES: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[], Any]]] = {
    "an object that dies in the call": (dies, weakref.WeakValueDictionary),
    "a lock that is taken": (locks, lambda: [threading.Lock()]),
    "a hook that takes itself off": (unhooks, lambda: ["a hook"]),
    "an input that is written to by NumPy": (by_numpy, list),
}


class Outer(nn.Module):
    """With a module inside that may run live."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.inner(x) + 1


@pytest.mark.parametrize("name", STATES)
def test_beside_one_that_is_not_compiled(name: str) -> None:
    forward, first = STATES[name]
    inner: Any = Forward(forward, lin=nn.Linear(4, 4)).requires_grad_(False)
    net, twin = Outer(inner), Outer(copy.deepcopy(inner))
    for each in (net.inner, twin.inner):
        each.value = first()
        unhooked(each)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for step in range(5):
            mine, theirs = torch.full((2, 4), float(step)), torch.full((2, 4), float(step))
            torch.testing.assert_close(handle(mine), twin(theirs))
            assert torch.equal(mine, theirs)
