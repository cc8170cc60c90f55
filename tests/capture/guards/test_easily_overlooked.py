"""Changes by ways that are easily overlooked: names that look like others', identity, what others have put on a value, code of Python's own."""

from __future__ import annotations

import builtins
import collections
import dataclasses
import functools
import math
import operator
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfast_core.capture import Trace
from tests.capture.guards import carried, inside, looked_up
from tests.models import Forward
from tests.tracing import guarded

X = torch.ones(2, 8)
Change = Callable[[Any], Any]


class Box:
    def __init__(self, k: float) -> None:
        self.k = k

    def add(self, x: Any) -> Any:
        return x * self.k


class Gets:
    def __init__(self, k: float) -> None:
        self.k = k

    def get(self, key: str) -> float:
        return self.k


def ks_of(value: Any) -> Any:
    found = []
    for k in getattr(value, "k", []):
        found.append(k)
    return found


class Token:
    """Nothing but itself."""


class Names(list):  # type: ignore[type-arg]
    """A list of its own class."""


class Table(dict):  # type: ignore[type-arg]
    """A dict of its own class."""


class Number(float):
    """A number of its own class."""


@dataclasses.dataclass
class Data:
    k: float


A, B = Token(), Token()
BOX = Box(1.0)
K = 1.0
TABLE = {A: 1.0, B: 2.0}
LISTED = [1.0]
GET = getattr
other = types.ModuleType("other_of_overlooked")
vars(other)["update"] = lambda x: x * 2
sys.modules[other.__name__] = other


def with_k(value: Any, k: float) -> Any:
    value.k = k
    return value


def function(k: float) -> Any:
    return with_k(lambda x: x, k)


def handed_on(value: Any) -> Any:
    return value


def with_more(value: Any) -> Any:
    value.k, value.more = 1.0, 2.0
    return value


def with_keyword(k: float) -> Any:
    return lambda x, *, k=k: x * k


def of_a_file(k: float) -> Any:
    return types.FunctionType((lambda x: x * K).__code__, {"K": k})


def is_sparse(value: torch.Tensor) -> bool:
    with torch._C.DisableTorchFunction():
        return value.layout is torch.sparse_coo


class Marked(torch.Tensor):
    k: float


def marked(k: float) -> torch.Tensor:
    return with_k(torch.ones(2).as_subclass(Marked), k)


GETTER = operator.attrgetter("k")


def k_of(value: Any) -> float:
    with torch._C.DisableTorchFunction():
        return value.k


def in_order(net: Any, x: torch.Tensor) -> torch.Tensor:
    for number in net.value:
        x = x * 2 + number
    return x


def by_an_alias(net: Any, x: torch.Tensor) -> torch.Tensor:
    get = getattr
    return x * get(net, net.which)


def by_its_get(net: Any, x: torch.Tensor) -> torch.Tensor:
    get = net.value.get
    return x * get(net.which)


def compares_and_hands_on(net: Any, x: torch.Tensor) -> torch.Tensor:
    handed_on(net.value)
    return x * 2 if net.value is A else x


def put(value: Callable[[], Any]) -> Change:
    return lambda net: setattr(net, "value", value())


#: name: the forward, what is in ``value`` at first, and the change.
CASES: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Callable[[], Any], Change]] = {
    "one more parameter": (
        lambda net, x: x * len(list(net.value.parameters())), lambda: nn.Linear(8, 8),
        lambda net: net.value.register_parameter("more", nn.Parameter(torch.ones(8)))),
    "an ordered dict that was empty": (lambda net, x: x * (1 + len(net.value)), collections.OrderedDict, lambda net: net.value.update(a=1)),
    # A method whose name is a mutator's is taken for a container's, and not looked up.
    "an object's own add": (lambda net, x: net.value.add(x), lambda: Box(1.0), lambda net: setattr(net.value, "add", lambda x: x * 5)),
    "a module's own update": (lambda net, x: net.update(x), lambda: None, lambda net: setattr(net, "update", lambda x: x * 5)),
    "another file's update": (lambda net, x: other.update(x), lambda: None, lambda net: setattr(other, "update", lambda x: x * 5)),
    # Objects that nothing is read of are equal, if of one class.
    "identity, of what is handed on": (compares_and_hands_on, lambda: A, put(lambda: B)),
    "equality of objects": (lambda net, x: x * 2 if net.value == A else x, lambda: A, put(lambda: B)),
    "a dict by objects": (lambda net, x: x * TABLE[net.value], lambda: A, put(lambda: B)),
    "an object in a list": (lambda net, x: x * 2 if net.value in [A] else x, lambda: A, put(lambda: B)),
    # Equal things, asked for their identity.
    "identity of a list": (lambda net, x: x * 2 if net.value is LISTED else x, lambda: LISTED, put(lambda: [1.0])),
    "id": (lambda net, x: x * 2 if id(net.value) == id(LISTED) else x, lambda: LISTED, put(lambda: [1.0])),
    # Attributes of what is compared by value or content.
    "an attribute of another list": (lambda net, x: x * net.value.k, lambda: with_k(Names(), 1.0), put(lambda: with_k(Names(), 2.0))),
    "an attribute of another dict": (lambda net, x: x * net.value.k, lambda: with_k(Table(), 1.0), put(lambda: with_k(Table(), 2.0))),
    "an attribute of another function": (lambda net, x: net.value(x) * net.value.k, lambda: function(1.0), put(lambda: function(2.0))),
    "an attribute of another number": (lambda net, x: x * net.value.k, lambda: with_k(Number(1), 1.0), put(lambda: with_k(Number(1), 2.0))),
    "an attribute of a number": (lambda net, x: x * net.value.k, lambda: with_k(Number(1), 1.0), lambda net: with_k(net.value, 2.0)),
    "an attribute of a partial": (
        lambda net, x: net.value(x) * net.value.k, lambda: with_k(functools.partial(torch.neg), 1.0), lambda net: with_k(net.value, 2.0)),
    "an attribute of a tensor": (lambda net, x: x * net.value.k, lambda: with_k(torch.ones(8), 1.0), lambda net: with_k(net.value, 2.0)),
    "an attribute of a tensor that is handed on": (lambda net, x: x * k_of(net.value), lambda: with_k(torch.nn.Parameter(torch.ones(8)), 1.0), lambda net: with_k(net.value, 2.0)),
    "an attribute of a tensor that is handed on, or a list": (
        lambda net, x: x * sum(ks_of(net.value)),
        lambda: with_k(torch.nn.Parameter(torch.ones(8)), [1.0]),
        lambda net: with_k(net.value, [2.0]),
    ),
    "an attribute of a weight in whose place another is": (
        lambda net, x: x * net.value * net.value.k,
        lambda: with_k(torch.nn.Parameter(torch.ones(8)), 1.0),
        put(lambda: with_k(torch.nn.Parameter(torch.ones(8)), 2.0)),
    ),
    "an attribute of a tensor in whose place another is": (
        lambda net, x: x * net.value.k,
        lambda: with_k(torch.ones(8), 1.0),
        put(lambda: with_k(torch.ones(8), 2.0)),
    ),
    "an attribute that only the next weight has": (
        lambda net, x: x * net.value * getattr(net.value, "k", 1.0),
        lambda: torch.nn.Parameter(torch.ones(8)),
        put(lambda: with_k(torch.nn.Parameter(torch.ones(8)), 2.0)),
    ),
    "an attribute that a tensor may have": (
        lambda net, x: x * getattr(net.value, "k", 1.0), lambda: torch.ones(8), lambda net: with_k(net.value, 2.0)),
    "an attribute of a parameter": (
        lambda net, x: net.lin(x) * getattr(net.lin.weight, "k", 1.0), lambda: None, lambda net: with_k(net.lin.weight, 2.0)),
    "whether a parameter wants a gradient": (
        lambda net, x: net.lin(x) * (2 if net.lin.weight.requires_grad else 1), lambda: None, lambda net: net.lin.requires_grad_(True)),
    "a tensor's strides": (
        lambda net, x: x * 2 if net.value.is_contiguous() else x, lambda: torch.ones(3, 2), put(lambda: torch.ones(2, 3).t())),
    # What sets are besides what is in them.
    "types in a set": (
        lambda net, x: x * 2 if any(v is True for v in net.value) else x, lambda: {1}, lambda net: (net.value.clear(), net.value.add(True))),
    "a set's order": (in_order, lambda: {0, 8}, put(lambda: {8, 0})),
    "a deque's length at most": (
        lambda net, x: x * net.value.maxlen, lambda: collections.deque([1], 3), put(lambda: collections.deque([1], 5))),
    "where a range ends": (lambda net, x: x * net.value.stop, lambda: range(0, 3, 2), put(lambda: range(0, 4, 2))),
    # Read by code of Python's own.
    "dataclasses.asdict": (lambda net, x: x * dataclasses.asdict(net.value)["k"], lambda: Data(1.0), lambda net: with_k(net.value, 2.0)),
    "dataclasses.astuple": (lambda net, x: x * dataclasses.astuple(net.value)[0], lambda: Data(1.0), lambda net: with_k(net.value, 2.0)),
    "str.format": (lambda net, x: x * float("{0.k}".format(net.value)), lambda: Data(1.0), lambda net: with_k(net.value, 2.0)),  # noqa: UP030, UP032
    "str.format, in a format's own": (lambda net, x: x * len("{0:{1.k}}".format(2, net.value)), lambda: Data(3), lambda net: with_k(net.value, 5)),  # noqa: UP032
    "str.format of a namespace": (lambda net, x: x * len("{}".format(net.value)), lambda: types.SimpleNamespace(k=1), lambda net: with_k(net.value, 200)),  # noqa: UP032
    "str.format of a list in a list": (lambda net, x: x * len("{}".format(net.value)), lambda: [[1]], lambda net: net.value[0].append(2)),  # noqa: UP032
    "str.format of a dataclass": (lambda net, x: x * len("{}".format(net.value)), lambda: Data(1.0), lambda net: with_k(net.value, 200.0)),  # noqa: UP032
    "a slice from False": (lambda net, x: x * 2 if net.value.start is False else x, lambda: slice(0, 2), put(lambda: slice(False, 2))),
    "a complex number's zero": (lambda net, x: x * math.copysign(1, net.value.real), lambda: complex(0.0, 1.0), put(lambda: complex(-0.0, 1.0))),
    "a list that is a tuple": (lambda net, x: x * 2 if isinstance(net.value, tuple) else x, lambda: [1.0], put(lambda: (1.0,))),
    "a large numpy array": (lambda net, x: x * float(net.value[0]), lambda: np.ones(1 << 18), lambda net: net.value.fill(2.0)),
    "a dict's keys": (
        lambda net, x: x * (2 if "b" in list(net.value) else 1), lambda: {"a": 1.0}, lambda net: net.value.update(b=net.value.pop("a"))),
    "another dict's keys": (lambda net, x: x * (2 if "b" in list(net.value) else 1), lambda: {"a": 1.0}, put(lambda: {"b": 1.0})),
    # What tensors are besides their shape and dtype.
    "a tensor's layout": (lambda net, x: x * 2 if is_sparse(net.value) else x, lambda: torch.ones(2, 2), put(lambda: torch.ones(2, 2).to_sparse())),
    "whether a tensor is conjugated": (
        lambda net, x: x * 2 if net.value.is_conj() else x, lambda: torch.ones(2, dtype=torch.complex64), put(lambda: torch.ones(2, dtype=torch.complex64).conj())),
    "whether a tensor is negated": (lambda net, x: x * 2 if net.value.is_neg() else x, lambda: torch.ones(2), put(lambda: torch._neg_view(torch.ones(2)))),
    "whether a tensor wants gradients": (
        lambda net, x: x * 2 if net.value.requires_grad else x, lambda: torch.ones(2), put(lambda: torch.ones(2, requires_grad=True))),
    "whether a tensor in a list wants gradients": (
        lambda net, x: x * 2 if net.value[0].requires_grad else x, lambda: [torch.ones(2)], lambda net: kept(net.value, torch.ones(2, requires_grad=True))),
    "a tensor of a class of its own": (lambda net, x: x * k_of(net.value), lambda: marked(1.0), put(lambda: marked(2.0))),
    "a tensor of a class of its own, read by C": (
        lambda net, x: x * GETTER(net.value), lambda: marked(1.0), put(lambda: marked(2.0))),
    "an item that a dict may have": (lambda net, x: x * net.value.get("k", 3.0), dict, lambda net: net.value.__setitem__("k", 2.0)),
    # Functions that are much alike.
    "a function of another file": (lambda net, x: net.value(x), lambda: of_a_file(1.0), put(lambda: of_a_file(2.0))),
    "a function's keyword default": (lambda net, x: net.value(x), lambda: with_keyword(1.0), put(lambda: with_keyword(2.0))),
    "a method of another function": (
        lambda net, x: net.value(x), lambda: types.MethodType(Box.add, BOX), put(lambda: types.MethodType(lambda box, x: x * box.k * 2, BOX))),
    "a weak reference to another": (lambda net, x: x * TABLE[net.value()], lambda: weakref.ref(A), put(lambda: weakref.ref(B))),
    # That there is something more.
    "all attributes of the root": (lambda net, x: x * len(vars(net)), lambda: None, lambda net: setattr(net, "another", None)),
    "all attributes of an object": (lambda net, x: x * len(vars(net.value)), lambda: Box(1.0), lambda net: setattr(net.value, "another", None)),
    "an attribute more of another list": (
        lambda net, x: x * getattr(net.value, "k", 1.0) * getattr(net.value, "more", 1.0), lambda: with_k(Names(), 1.0), put(lambda: with_more(Names()))),
    # One item of a dict, by get.
    "a key that comes": (lambda net, x: x * net.value.get("k", 1.0), dict, lambda net: net.value.update(k=2.0)),
    "a key that goes": (lambda net, x: x * net.value.get("k", 1.0), lambda: {"k": 2.0}, lambda net: net.value.clear()),
    "another dict with the key": (lambda net, x: x * net.value.get("k", 1.0), dict, put(lambda: {"k": 2.0})),
    "another dict without the key": (lambda net, x: x * net.value.get("k", 1.0), lambda: {"k": 2.0}, put(dict)),
    "a list in another dict": (lambda net, x: x * net.value.get("k")[0], lambda: {"k": [1.0]}, put(lambda: {"k": [2.0]})),
    "an object in a dict": (lambda net, x: x * net.value.get("k").k, lambda: {"k": Box(1.0)}, lambda net: with_k(net.value["k"], 2.0)),
    "an object in another dict": (lambda net, x: x * net.value.get("k").k, lambda: {"k": Box(1.0)}, put(lambda: {"k": Box(2.0)})),
    "what get has in the place of nothing": (lambda net, x: x * net.value.get("k", net).which.k, dict, lambda net: with_k(net.which, 2.0)),
    "get by a local name": (by_its_get, lambda: {"value": 1.0}, lambda net: net.value.update(value=2.0)),
    "get of a computed key": (lambda net, x: x * net.value.get("".join("k")), lambda: {"k": 1.0}, lambda net: net.value.update(k=2.0)),
    "get, and all the rest": (
        lambda net, x: x * net.value.get("k") * len(net.value), lambda: {"k": 1.0}, lambda net: net.value.update(b=2.0)),
    "get, and all the rest of another": (
        lambda net, x: x * net.value.get("k") * len(net.value), lambda: {"k": 1.0}, put(lambda: {"k": 1.0, "b": 2.0})),
    "get of a class of its own": (lambda net, x: x * net.value.get("k"), lambda: Table(k=1.0), lambda net: net.value.update(k=2.0)),
    "an object's own get": (lambda net, x: x * net.value.get("k"), lambda: Gets(1.0), lambda net: with_k(net.value, 2.0)),
    "an object's other get": (lambda net, x: x * net.value.get("k"), lambda: Gets(1.0), lambda net: setattr(net.value, "get", lambda key: 2.0)),
    # getattr under another name.
    "getattr by a local name": (by_an_alias, lambda: 1.0, put(lambda: 2.0)),
    "getattr by a global name": (lambda net, x: x * GET(net, net.which), lambda: 1.0, put(lambda: 2.0)),
    "builtins.getattr": (lambda net, x: x * builtins.getattr(net, net.which), lambda: 1.0, put(lambda: 2.0)),
}


CASES |= inside.CASES | looked_up.CASES | carried.CASES


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    yield
    inside.put_back()
    carried.put_back()


@pytest.mark.parametrize("name", CASES)
def test_a_change_that_steers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    forward, first, change = CASES[name]
    monkeypatch.setattr(other, "update", lambda x: x * 2)
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.value, net.which, net.update = first(), Box(1.0) if "nothing" in name else "value", lambda x: x * 2
    before, found, guard = guarded(net, X)
    if not isinstance(found, Trace):
        return
    assert guard.changed(net) is None
    change(net)
    with torch.no_grad():
        assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)


def kept(values: list[Any], value: Any) -> None:
    """Put a value into the place of another, which somebody still has."""
    KEPT.append(values[0])
    values[0] = value


KEPT: list[Any] = []


class Child(nn.Module):
    def __init__(self, root: nn.Module) -> None:
        super().__init__()
        self.root = weakref.ref(root)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.root().k  # type: ignore[misc,union-attr]


def test_a_model_that_a_child_refers_to_weakly_is_freed_at_once() -> None:
    import gc

    class Root(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.k, self.child = 2.0, Child(self)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.child(x)

    net = Root()
    gc.collect()
    gc.disable()
    try:
        net.__dict__["_compiled_state"] = guarded(net, X)[1:]
        ref = weakref.ref(net)
        del net
        assert ref() is None
    finally:
        gc.enable()


def test_what_the_model_refers_to_weakly_may_go() -> None:
    token = Token()
    net: Any = Forward(lambda net, x: x * 2 if net.value() is None else x)
    net.value = weakref.ref(token)
    _, _, guard = guarded(net, X)
    assert guard.changed(net) is None
    del token
    assert net.value() is None and guard.changed(net)
