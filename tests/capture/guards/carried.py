"""What others put on functions, files, numbers and the like which a forward comes by without knowing what it has, and
what Python's own library asks these for.

As in :mod:`test_easily_overlooked`: the forward, what is in ``value`` at first, and the change.
"""

from __future__ import annotations

import enum
import functools
import inspect
import sys
import types
from collections.abc import Callable
from typing import Any

import torch

from tests.capture.guards.looked_up import made

Forward = Callable[[Any, torch.Tensor], torch.Tensor]


class Number(float):
    """A number of its own class."""


class Listed(list):  # type: ignore[type-arg]
    """A list of its own class."""


class Side(enum.Enum):
    A = 1


class Has:
    def go(self, x: Any) -> Any:
        return x


class Gained(property):
    """Computes by an attribute of its own, or of its class's."""

    carried_gain = 1.0

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self if instance is None else self.carried_gain


def carrying(value: Any, **attributes: Any) -> Any:
    for name, each in attributes.items():
        setattr(value, name, each)
    return value


def function(**attributes: Any) -> Any:
    return carrying(lambda x: x, **attributes)


def file(**attributes: Any) -> Any:
    return carrying(types.ModuleType("carried_file"), **attributes)


def by_the_gain(net: Any, x: torch.Tensor) -> torch.Tensor:
    for each in net.value.values() if isinstance(net.value, dict) else net.value:
        x = x * getattr(each, "carried_gain", 1.0)
    return x


def in_lists(net: Any, x: torch.Tensor) -> torch.Tensor:
    for each in net.value:
        for one in each.held:
            x = x * one.carried_gain[0]
    return x


def by_a_name(net: Any, x: torch.Tensor) -> torch.Tensor:
    for each in net.value:
        x = x * getattr(each, "carried_" + NAME, 1.0)
    return x


def first_gets(**attributes: Any) -> Callable[[Any], Any]:
    return lambda net: carrying(next(iter(net.value)), **attributes)


def first_loses(name: str) -> Callable[[Any], Any]:
    return lambda net: delattr(next(iter(net.value)), name)


def by_its_name(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * getattr(net.value, "carried_" + NAME, 3.0)


def gets(**attributes: Any) -> Callable[[Any], Any]:
    return lambda net: carrying(net.value, **attributes)


def unwrapped(net: Any, x: torch.Tensor) -> torch.Tensor:
    for each in net.value:
        x = inspect.unwrap(each)(x)
    return x


def by_signature(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (2 if "scale" in inspect.signature(net.value).parameters else 1)


def as_signed(*names: str) -> inspect.Signature:
    return inspect.Signature([inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY) for name in names])


def leaf(net: Any, x: torch.Tensor) -> torch.Tensor:
    sys.modules.setdefault("carried_whole", file()), sys.modules.setdefault("carried_whole.leaf", file(k=1.0))
    found: float = __import__("carried_whole.leaf", fromlist=["k"]).k
    return x * found


def stale() -> Any:
    """What the function keeps is from before its setting changed."""
    SETTING["k"] = 1.0
    cached = functools.lru_cache(lambda: SETTING["k"])
    cached()
    SETTING["k"] = 2.0
    return cached


SETTING = {"k": 1.0}
NAME = "gain"
CASES: dict[str, tuple[Forward, Callable[[], Any], Callable[[Any], Any]]] = {
    "a function in a list": (by_the_gain, lambda: [function(carried_gain=1.0)], first_gets(carried_gain=2.0)),
    "a function that has nothing": (by_the_gain, lambda: [function()], first_gets(carried_gain=2.0)),
    "a function that loses it": (by_the_gain, lambda: [function(carried_gain=2.0)], first_loses("carried_gain")),
    "a function in a dict": (
        by_the_gain,
        lambda: {"a": function()},
        lambda net: carrying(net.value["a"], carried_gain=2.0),
    ),
    "a method in a tuple": (by_the_gain, lambda: (Has().go,), lambda net: carrying(Has.go, carried_gain=2.0)),
    "a partial": (by_the_gain, lambda: [functools.partial(function())], first_gets(carried_gain=2.0)),
    "a function with a cache": (by_the_gain, lambda: [functools.lru_cache(function())], first_gets(carried_gain=2.0)),
    "a file": (by_the_gain, lambda: [file(carried_gain=1.0)], first_gets(carried_gain=2.0)),
    "a number": (by_the_gain, lambda: [Number(1.0)], first_gets(carried_gain=2.0)),
    "a list in a list": (by_the_gain, lambda: [Listed()], first_gets(carried_gain=2.0)),
    "a member of an enumeration": (by_the_gain, lambda: {Side.A}, lambda net: carrying(Side.A, carried_gain=2.0)),
    "a function in a list of an object's in a list": (
        in_lists,
        lambda: [types.SimpleNamespace(held=[function(carried_gain=[1.0])])],
        lambda net: net.value[0].held[0].carried_gain.__setitem__(0, 2.0),
    ),
    "a function that has nothing, by a computed name": (by_a_name, lambda: [function()], first_gets(carried_gain=2.0)),
    "a function in a list, by a computed name": (
        by_a_name,
        lambda: [function(carried_gain=1.0)],
        first_gets(carried_gain=2.0),
    ),
    "a tensor in a list, by a computed name": (by_a_name, lambda: [torch.ones(1)], first_gets(carried_gain=2.0)),
    "what a function wraps": (
        unwrapped,
        lambda: [function(__wrapped__=lambda x: x * 2)],
        first_gets(__wrapped__=lambda x: x * 3),
    ),
    "that a function wraps nothing": (
        unwrapped,
        lambda: [function(__wrapped__=lambda x: x * 2)],
        first_loses("__wrapped__"),
    ),
    "how a function is to be called": (
        by_signature,
        function,
        lambda net: carrying(net.value, __signature__=as_signed("scale")),
    ),
    "what a function says of itself": (
        lambda net, x: x * len(inspect.getdoc(net.value) or ""),
        lambda: function(__doc__="a"),
        lambda net: carrying(net.value, __doc__="abc"),
    ),
    "a file, by a computed name": (by_a_name, lambda: [file()], first_gets(carried_gain=2.0)),
    "a class in a list, by a computed name": (by_a_name, lambda: [made()], first_gets(carried_gain=2.0)),
    "what a file in a list makes": (by_the_gain, lambda: [file()], first_gets(__getattr__=lambda name: 2.0)),
    "what a file makes otherwise": (
        lambda net, x: x * net.value.carried_gain,
        lambda: file(__getattr__=lambda name: 1.0),
        lambda net: carrying(net.value, __getattr__=lambda name: 2.0),
    ),
    "what a file makes, by a computed name": (
        by_its_name,
        lambda: file(__getattr__=lambda name: 1.0),
        lambda net: carrying(net.value, __getattr__=lambda name: 2.0),
    ),
    "a file that has it not, by a computed name": (by_its_name, file, gets(carried_gain=2.0)),
    "a function that has it not, by a computed name": (by_its_name, function, gets(carried_gain=2.0)),
    "a class that has it not, by a computed name": (by_its_name, made, gets(carried_gain=2.0)),
    "how much a class has": (lambda net, x: x * len(vars(net.value)), made, gets(carried_gain=2.0)),
    "how much a file has": (lambda net, x: x * len(vars(net.value)), file, gets(carried_gain=2.0)),
    "what a file lists": (lambda net, x: x * len(dir(net.value)), file, gets(carried_gain=2.0)),
    "what a class and its bases list": (
        lambda net, x: x * len(dir(net.value)),
        lambda: type("Derived", (made(),), {"__module__": __name__}),
        lambda net: carrying(net.value.__base__, carried_gain=2.0),
    ),
    "a descriptor that has what its class has": (
        lambda net, x: x * net.value.gain,
        lambda: made(gain=Gained(lambda self: 1.0))(),
        lambda net: carrying(vars(type(net.value))["gain"], carried_gain=2.0),
    ),
    "a file by __import__ and a list": (leaf, lambda: None, lambda net: carrying(sys.modules["carried_whole.leaf"], k=2.0)),
    "what a function keeps from before a change": (
        lambda net, x: x * net.value(),
        stale,
        lambda net: net.value.cache_clear(),
    ),
}  # fmt: skip


def put_back() -> None:
    """What cases have put on what all have."""
    for each in (Has.go, Side.A):
        vars(each).pop("carried_gain", None)
    for name in ("carried_whole", "carried_whole.leaf"):
        sys.modules.pop(name, None)
