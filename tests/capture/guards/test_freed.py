"""A compiled model is freed as soon as nobody holds it, whatever its forward hands around in a call: nothing waits for
the collector.
"""

from __future__ import annotations

import collections
import dataclasses
import functools
import gc
import operator
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

X = torch.ones(2, 8)
Call = Callable[[Any, torch.Tensor], torch.Tensor]


@pytest.fixture(autouse=True)
def _without_the_collector() -> Iterator[None]:
    gc.disable()
    yield
    gc.enable()


class Net(Forward):
    def __init__(self, forward: Call) -> None:
        super().__init__(forward, linear=nn.Linear(8, 8))
        self.requires_grad_(False)
        self.scale = 2.0

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        return self.linear(x) * self.scale


class Calls:
    """Has an ``__init__`` of Python's, so it is known from before it holds anything."""

    def __init__(self, function: Callable[..., Any]) -> None:
        self.function = function

    def __call__(self, *args: Any) -> Any:
        return self.function(*args) * 1


@dataclasses.dataclass
class Data:
    net: Any

    def run(self, x: torch.Tensor) -> Any:
        return self.net.scaled(x) * self.net.scale


class Slots:
    __slots__ = ("net",)

    def __init__(self, net: Any) -> None:
        self.net = net

    def run(self, x: torch.Tensor) -> Any:
        return self.net.scaled(x) * self.net.scale


class Tagged(list):  # type: ignore[type-arg]
    net: Any


class Wrapped(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net = net

    def forward(self, x: torch.Tensor) -> Any:
        return self.net.scaled(x) * len(list(self.parameters()))


Pair = collections.namedtuple("Pair", "net other")  # noqa: PYI024


def flagged(function: Callable[..., Any], *args: Any) -> Any:
    return function(*args) * (2 if getattr(function, "flag", False) else 1)


def by_attribute(box: Any, x: torch.Tensor) -> Any:
    return box.held.scaled(x) * box.held.scale


def by_key(box: Any, x: torch.Tensor) -> Any:
    return box.held["net"].scaled(x) * box.held["net"].scale


def by_index(box: Any, x: torch.Tensor) -> Any:
    return box.held[0].scaled(x) * box.held[0].scale


def by_loop(box: Any, x: torch.Tensor) -> Any:
    for net in box.held:
        x = net.scaled(x) * net.scale
    return x


def by_call(box: Any, x: torch.Tensor) -> Any:
    return box.held(x) * 1


def by_tag(box: Any, x: torch.Tensor) -> Any:
    return box.held.net.scaled(x) * len(box.held)


def box(held: Any) -> Any:
    """An object that is first seen when it holds something."""
    return types.SimpleNamespace(held=held)


def tagged(net: Any) -> Any:
    held = Tagged([1, 2])
    held.net = net
    return held


def wrapping(net: Any, x: torch.Tensor) -> Any:
    @functools.wraps(by_call)
    def inner(y: torch.Tensor) -> Any:
        return net.scaled(y)

    return flagged(inner, x)


def cached(net: Any) -> Any:
    @functools.lru_cache
    def scale() -> Any:
        return net.scale

    return lambda x: x * scale()


FORWARDS: dict[str, Call] = {
    "its variables": lambda net, x: net.linear(x) * len(vars(net)),
    "its dict": lambda net, x: net.linear(x) * sum(1 for value in net.__dict__.values() if value is not None),
    "its names": lambda net, x: net.linear(x) * len(dir(net)),
    "names that are computed": lambda net, x: net.linear(x) * sum(getattr(net, name) for name in ["scale"]),
    "a getter": lambda net, x: net.linear(x) * operator.attrgetter("scale")(net),
    "its modules": lambda net, x: net.linear(x) * len(list(net.modules())),
    "which it is": lambda net, x: net.linear(x) * (2 if net.linear is not net else 1),
    "a function that closes over it": lambda net, x: flagged(lambda y: net.scaled(y), x),
    "functions in functions": lambda net, x: flagged(lambda y: flagged(lambda z: net.scaled(z), y), x),
    "a default": lambda net, x: flagged(lambda y, net=net: net.scaled(y), x),
    "a wrapper": wrapping,
    "its method": lambda net, x: flagged(net.scaled, x),
    "a method's type": lambda net, x: flagged(types.MethodType(lambda self, y: self.scaled(y), net), x),
    "a partial": lambda net, x: flagged(functools.partial(by_attribute, box(net)), x),
    "objects in objects": lambda net, x: Calls(Calls(Calls(net.scaled)))(x),
    "a dataclass": lambda net, x: Data(net).run(x),
    "slots": lambda net, x: Slots(net).run(x),
    "a module": lambda net, x: Wrapped(net)(x),
    "a named tuple": lambda net, x: by_attribute(box(Pair(net, 1).net), x) * by_loop(box(Pair(net, net)), x),
    "an object": lambda net, x: by_attribute(box(net), x),
    "a dict": lambda net, x: by_key(box({"net": net}), x),
    "a list": lambda net, x: by_index(box([net]), x),
    "a tuple": lambda net, x: by_index(box((net,)), x),
    "a loop": lambda net, x: by_loop(box([net]), x),
    "a set": lambda net, x: by_loop(box({net}), x),
    "an attribute of a list": lambda net, x: by_tag(box(tagged(net)), x),
    "an attribute that is called": lambda net, x: by_call(box(net.scaled), x),
    "an attribute that closes over it": lambda net, x: by_call(box(lambda y: net.scaled(y)), x),
    "an attribute that is a partial": lambda net, x: by_call(box(functools.partial(by_attribute, box(net))), x),
    "a cache": lambda net, x: by_call(box(cached(net)), x),
}


@pytest.mark.parametrize("name", FORWARDS)
def test_it_is_freed_at_once(name: str) -> None:
    net = Net(FORWARDS[name])
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            handle(X)
    assert handle.engine.report.calls["fused"] == 2, handle.report().text()
    alive = [weakref.ref(thing) for thing in (net, net.linear, net.linear.weight, handle.engine)]
    del net, handle
    assert [ref() for ref in alive] == [None] * 4


class Swaps(nn.Module):
    """Draws, so it runs live; and lets go of an object, to which it has a weak reference."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.kept: Any = Held()
        self.there: list[bool] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        before, self.kept = weakref.ref(self.kept), Held()
        self.there.append(before() is not None)
        return self.linear(x) + torch.rand(1) * 0


class Held:
    """Somebody's."""


def test_what_live_code_lets_go_of_is_gone_within_the_call() -> None:
    net = nn.Sequential(Swaps(), nn.Linear(8, 8)).requires_grad_(False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(4):
            handle(X)
    swaps: Any = net[0]
    assert swaps.there == [False] * 4 and handle.engine.report.calls["fused"]


def test_a_subclass_that_was_counted_may_go() -> None:
    base = type("Base", (), {})
    below = type("Below", (base,), {"__hash__": None})
    net = Net(lambda net, x: net.linear(x) * len(base.__subclasses__()))
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(X), handle(X)
    del below
    gc.collect()
    assert not base.__subclasses__()
