"""When another object in the place of one that was read is as good: it has what was read of that one."""

from __future__ import annotations

import collections
import functools
import types
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Trace
from tests.models import Forward
from tests.tracing import guarded

X = torch.ones(2)


def changed(then: Any, now: Any, use: Callable[[Any], Any]) -> str | None:
    """What a guard says where ``then`` was what a call read, by ``use``, and ``now`` is in its place."""

    def forward(module: Any, x: torch.Tensor) -> torch.Tensor:
        use(module.value)
        return x + 1

    net = Forward(forward)
    net.value = then
    _, found, guard = guarded(net, X.clone())  # some use X themselves
    assert isinstance(found, Trace), found.reason
    assert guard.changed(net) is None
    net.value = now
    first = guard.changed(net)
    assert first is None or "value" in first, first
    net.value = then
    assert guard.changed(net) is None, "it is back"
    net.value = now
    assert guard.changed(net) == first
    return first


def whole(value: Any) -> Any:
    """Reads a value as a whole: what is done with it isn't seen."""
    return [value]


class Box:
    def __init__(self, k: Any, other: Any = None) -> None:
        self.k, self.other = k, other

    def times(self, x: Any) -> Any:
        return x * self.k


class Crate(Box):
    pass


class Slots:
    __slots__ = ("k", "other")

    def __init__(self, k: Any) -> None:
        self.k = k


class Names(list):  # type: ignore[type-arg]
    """A list of its own class."""


def times(x: Any, k: float) -> Any:
    return x * k


def function(k: Any, factor: Any = 1.0, *, named: Any = 1.0) -> Any:
    return lambda x, y=factor, *, z=named: x * k * y * z


def other_code(k: Any) -> Any:
    return lambda x: x + k


def read_k(value: Any) -> Any:
    return value.k


def read_k_of_k(value: Any) -> Any:
    return value.k.k


def called(value: Any) -> Any:
    return value(1.0)


def led_to(value: Any) -> Any:
    return value().k


SHARED, OTHER = Box(1.0), Box(2.0)
OBJECT = object()

EQUAL: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "numbers": (1.5, float("1.5"), whole),
    "lists": ([1, "a", None], [1, "a", None], whole),
    "lists in lists": ([[1], [2, [3.0]]], [[1], [2, [3.0]]], whole),
    "tuples": ((1, (2.0, "a")), (1, (2.0, "a")), whole),
    "empty ones": ([], [], whole),
    "deques": (collections.deque([1]), collections.deque([1]), whole),
    "dicts": ({"a": [1], "b": {}}, {"a": [1], "b": {}}, whole),
    "ordered dicts": (collections.OrderedDict(a=1), collections.OrderedDict(a=1), whole),
    "sets": ({1, 2}, {2, 1}, whole),
    "frozensets": (frozenset("ab"), frozenset("ab"), whole),
    "tensors": (torch.zeros(2), torch.ones(2), whole),
    "lists of tensors": ([torch.zeros(2)], [torch.ones(2)], whole),
    "functions": (function(2.0), function(2.0), called),
    "functions that close over equal lists": (function([2.0][0]), function([2.0][0]), called),
    "functions in a dict": ({"f": function(2.0)}, {"f": function(2.0)}, whole),
    "partials": (functools.partial(times, k=2.0), functools.partial(times, k=2.0), called),
    "partials of partials": (
        functools.partial(functools.partial(times), k=2.0),
        functools.partial(functools.partial(times), k=2.0),
        called,
    ),
    "partials of equal functions": (functools.partial(function(2.0)), functools.partial(function(2.0)), called),
    "methods of one object": (SHARED.times, SHARED.times, called),
    "objects": (Box(1.0), Box(1.0), read_k),
    "objects that differ in what isn't read": (Box(1.0, "a"), Box(1.0, "b"), read_k),
    "objects in objects": (Box(Box(1.0)), Box(Box(1.0)), read_k_of_k),
    "objects with slots": (Slots(1.0), Slots(1.0), read_k),
    "namespaces": (types.SimpleNamespace(k=1.0), types.SimpleNamespace(k=1.0), read_k),
    "objects in a list": ([Box(1.0)], [Box(1.0)], lambda value: [box.k for box in value]),
    "the very same": (OBJECT, OBJECT, whole),
    "weak references to one object": (weakref.ref(SHARED), weakref.ref(SHARED, len), led_to),
}
UNEQUAL: dict[str, tuple[Any, Any, Callable[[Any], Any]]] = {
    "an item": ([1, 2], [1, 3], whole),
    "an item's type": ([1], [True], whole),
    "zero's sign": ([0.0], [-0.0], whole),
    "the order": ([1, 2], [2, 1], whole),
    "a length": ([1, 2], [1], whole),
    "a list and a tuple": ([1], (1,), whole),
    "a list and one of a class": ([1], Names([1]), whole),
    "a list in a list": ([[1]], [[2]], whole),
    "deques": (collections.deque([1]), collections.deque([2]), whole),
    "a dict's value": ({"a": 1}, {"a": 2}, whole),
    "a dict's key": ({"a": 1}, {"b": 1}, whole),
    "a dict's key's type": ({1: 1}, {True: 1}, whole),
    "a dict's order": ({"a": 1, "b": 2}, {"b": 2, "a": 1}, whole),
    "a dict and an ordered dict": ({"a": 1}, collections.OrderedDict(a=1), whole),
    "a list in a dict": ({"a": [1]}, {"a": [2]}, whole),
    "sets": ({1}, {2}, whole),
    "a set that has more": ({1}, {1, 2}, whole),
    "a set and a frozenset": ({1}, frozenset({1}), whole),
    "a tensor's shape": (torch.zeros(2), torch.zeros(3), whole),
    "a tensor's dtype": ([torch.zeros(2)], [torch.zeros(2, dtype=torch.int64)], whole),
    "a tensor and none": (torch.zeros(2), None, whole),
    "a tensor and a parameter": ([torch.zeros(2)], [nn.Parameter(torch.zeros(2))], whole),
    "a function's code": (function(2.0), other_code(2.0), called),
    "what a function closes over": (function(2.0), function(3.0), called),
    "a function's default": (function(2.0), function(2.0, 3.0), called),
    "a function's named default": (function(2.0), function(2.0, named=3.0), called),
    "a function in a dict": ({"f": function(2.0)}, {"f": function(3.0)}, whole),
    "a partial's keyword": (functools.partial(times, k=2.0), functools.partial(times, k=3.0), called),
    "a partial's argument": (
        functools.partial(times, 2.0, k=1.0),
        functools.partial(times, 3.0, k=1.0),
        lambda value: value(),
    ),
    "a partial's function": (functools.partial(function(2.0)), functools.partial(function(3.0)), called),
    "torch's functions": (torch.relu, torch.neg, whole),
    "a method's object": (Box(1.0).times, Box(2.0).times, called),
    "an object's number": (Box(1.0), Box(2.0), read_k),
    "an object's class": (Box(1.0), Crate(1.0), read_k),
    "an object in an object": (Box(Box(1.0)), Box(Box(2.0)), read_k_of_k),
    "an object's list": (Box([1.0]), Box([2.0]), lambda value: value.k[0]),
    "an object with slots": (Slots(1.0), Slots(2.0), read_k),
    "a namespace": (types.SimpleNamespace(k=1.0), types.SimpleNamespace(k=2.0), read_k),
    "an object in a list": ([Box(1.0)], [Box(2.0)], lambda value: [box.k for box in value]),
    "an object that hasn't got it": (Box(1.0), types.SimpleNamespace(), read_k),
    "an object and none": (Box(1.0), None, read_k),
    "something of which nothing is seen": (object(), object(), whole),
    "another module": (nn.ReLU(), nn.ReLU(), lambda value: value(X)),
    "a class": (Box, Crate, whole),
    "what a weak reference leads to": (weakref.ref(SHARED), weakref.ref(OTHER), led_to),
    "a weak reference in a list": ([weakref.ref(SHARED)], [weakref.ref(OTHER)], lambda value: value[0]().k),
}


@pytest.mark.parametrize("name", EQUAL)
def test_as_good(name: str) -> None:
    assert changed(*EQUAL[name]) is None


@pytest.mark.parametrize("name", UNEQUAL)
def test_not_as_good(name: str) -> None:
    assert changed(*UNEQUAL[name])


def cyclic_list(k: float) -> list[Any]:
    made: list[Any] = [k]
    made.append({"again": made})
    return made


def cyclic_object(k: float) -> Box:
    made = Box(k)
    made.other = Box(made)
    return made


def cyclic_function(k: float) -> Any:
    def again(x: Any) -> Any:
        return x * k if again else x

    return again


@pytest.mark.parametrize(
    ("make", "use"),
    [(cyclic_list, whole), (cyclic_object, lambda value: value.other.k.other.k.k), (cyclic_function, called)],
    ids=["a list", "an object", "a function"],
)
def test_what_holds_itself_is_compared_in_the_end(make: Any, use: Callable[[Any], Any]) -> None:
    """Another one may count as a change, one that differs has to."""
    assert changed(make(1.0), make(2.0), use)
    changed(make(1.0), make(1.0), use)


def test_a_change_of_what_holds_itself_is_noticed() -> None:
    value = cyclic_object(1.0)
    net = Forward(lambda net, x: x * net.value.other.k.k)
    net.value = value
    _, _, guard = guarded(net, X)
    assert guard.changed(net) is None
    value.k = 2.0
    assert guard.changed(net)


def test_many_that_share_one_another_take_no_time() -> None:
    """Two of each level lead to one of the next: there are 2^40 ways down."""

    def shared() -> Any:
        made: Any = [1.0]
        for _ in range(40):
            made = [made, made]
        return made

    changed(shared(), shared(), whole)


def test_what_cannot_be_compared_is_another() -> None:
    class Fails:
        def __init__(self) -> None:
            self.k = 1.0

        def __eq__(self, other: object) -> bool:
            raise ValueError("it can't be compared")

        def __hash__(self) -> int:
            return 1

    changed(Fails(), Fails(), read_k)
    changed({"a": Fails()}, {"a": Fails()}, whole)
    changed({Fails(): 1}, {Fails(): 1}, whole)
