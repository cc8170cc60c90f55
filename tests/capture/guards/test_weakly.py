"""What the model's code asks for by weak references dies when its owners let go of it, whatever is noted of it here; and
what a cache has kept is taken for good until the cache is emptied.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Callable
from types import ModuleType
from typing import Any

import numpy
import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace
from tests.models import Forward
from tests.tracing import guarded

pytestmark = pytest.mark.usefixtures("no_gradients")

X = torch.ones(2, 8)


class Token:
    """Something that is owned, and referred to weakly."""

    k = 2.0


def of_values(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * sum((each.k for each in net.where.values()), 1.0)


def of_items(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * sum((value for _, value in net.where.items()), 1.0)


def of_a_name(net: Any, x: torch.Tensor) -> torch.Tensor:
    found = net.where.get("a")
    return x if found is None else x * found.k


def of_a_set(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * (1.0 + len(net.where))


WHERE: dict[str, tuple[Callable[[Any, torch.Tensor], torch.Tensor], Callable[[Token], Any]]] = {
    "the values of a dict": (of_values, lambda token: weakref.WeakValueDictionary(a=token)),
    "a name in a dict": (of_a_name, lambda token: weakref.WeakValueDictionary(a=token)),
    "the keys of a dict": (of_items, lambda token: weakref.WeakKeyDictionary({token: 2.0})),
    "a set": (of_a_set, lambda token: weakref.WeakSet([token])),
}


@pytest.mark.parametrize("name", WHERE)
def test_what_is_in_a_weak_container_dies_with_its_owner(name: str) -> None:
    forward, container = WHERE[name]
    net: Any = Forward(forward)
    token = Token()
    net.where = container(token)
    before, found, guard = guarded(net, X)
    assert isinstance(found, Trace) and guard.changed(net) is None
    del token
    assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)


@pytest.mark.parametrize("name", WHERE)
def test_what_is_put_into_a_weak_container_is_noticed(name: str) -> None:
    forward, container = WHERE[name]
    net: Any = Forward(forward)
    token, another = Token(), Token()
    net.where = container(token)
    before, _, guard = guarded(net, X)
    assert guard.changed(net) is None
    net.where.update({another: 3.0} if "keys" in name else [another] if "set" in name else {"b": another, "a": another})
    another.k = 5.0
    assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)


def by_computed_names(net: Any, x: torch.Tensor) -> torch.Tensor:
    for name in vars(net.box):  # so all of it is noted
        x = x * (1.0 if getattr(net.box, name) is None else 1.5)
    return x * (1.0 if net.there() is None else 2.0)


def by_child(net: Any, x: torch.Tensor) -> torch.Tensor:
    return net.child(x) * net.child.k


class Box:
    """Owns a token."""

    def __init__(self, token: Token | None) -> None:
        self.token = token


@pytest.mark.parametrize("sizes", [(2, 2), (2, 3)], ids=["the same size", "another size"])
@pytest.mark.parametrize("then", [lambda: None, Token], ids=["nothing", "one that is as good"])
def test_what_a_trace_has_noted_dies_before_the_model_asks(sizes: tuple[int, int], then: Callable[[], Any]) -> None:
    net: Any = Forward(by_computed_names, lin=nn.Linear(8, 8)).requires_grad_(False).eval()
    net.box = Box(Token())
    net.there = weakref.ref(net.box.token)
    compiled = compile(net, CompileConfig(allow_cpu=True))
    first, second = (torch.ones(size, 8) for size in sizes)
    for _ in range(2):
        torch.testing.assert_close(compiled(first), first * 3.0)
    net.box.token = then()
    torch.testing.assert_close(compiled(second), second * (1.0 if net.box.token is None else 1.5))
    assert net.there() is None


def test_what_verdicts_have_noted_dies_before_the_model_asks() -> None:
    """Of a layer whose number is another at each call, which runs live by then."""
    net: Any = Forward(by_child, lin=nn.Linear(8, 8), child=Forward(by_computed_names)).requires_grad_(False).eval()
    child: Any = net.child
    child.box, child.k = Box(Token()), 1.0
    child.there = weakref.ref(child.box.token)
    compiled = compile(net, CompileConfig(allow_cpu=True))
    for k in range(12):
        child.k = float(k)
        compiled(X)
    child.box.token = None
    torch.testing.assert_close(compiled(X), X * 11.0)


def by_reference(net: Any, x: torch.Tensor) -> torch.Tensor:
    found = net.there()
    return net.lin(x) if found is None else net.use(found, net.lin(x))


class Words(list[str]):
    """May be referred to weakly, as a plain list may not."""


Weak = tuple[Callable[[], Any], Callable[[Any, torch.Tensor], torch.Tensor]]
REFERRED: dict[str, Weak] = {
    "an object": (Token, lambda token, x: x * token.k),
    "a function": (lambda: lambda x: x * 2.0, lambda function, x: function(x)),
    "a partial": (lambda: functools.partial(torch.mul, 2.0), lambda function, x: function(x)),
    "a layer": (lambda: nn.Linear(8, 8), lambda layer, x: layer(x)),
    "a set": (lambda: {1, 2}, lambda found, x: x * len(found)),
    "a list": (lambda: Words(["a", "b"]), lambda found, x: x * len(found)),
    "an array": (lambda: numpy.full(2, 2.0), lambda found, x: x * float(found[0])),
    "a file": (lambda: ModuleType("file"), lambda found, x: x * 2.0),
}


@pytest.mark.parametrize("owner", ["a list that nothing reads", "an attribute that is read"])
@pytest.mark.parametrize("name", REFERRED)
def test_whatever_is_referred_to_weakly_dies_with_its_owner(name: str, owner: str) -> None:
    """And one that is as good, which takes its owner's place, isn't what is referred to."""
    make, use = REFERRED[name]
    elsewhere: list[Any] = [None]
    net: Any = Forward(
        (lambda net, x: by_reference(net, x) * (1.0 if net.owned is None else 1.5))
        if owner == "an attribute that is read"
        else by_reference,
        lin=nn.Linear(8, 8),
    )

    def own(value: Any) -> None:
        if owner == "an attribute that is read":
            net.owned = value
        else:
            elsewhere[0] = value

    net.use, net.owned, net.there = use, None, lambda: None
    compiled = compile(net.requires_grad_(False).eval(), CompileConfig(allow_cpu=True))
    for as_good in (lambda: None, make):
        own(make())
        compiled(X)  # has seen it, before there is a reference to it
        net.there = weakref.ref(elsewhere[0] if net.owned is None else net.owned)
        compiled(X), compiled(X)
        own(as_good())
        compiled(X)
        assert net.there() is None


class Handler:
    def run(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2.0


@pytest.mark.parametrize("what", ["its object", "its function"])
def test_a_method_that_is_referred_to_weakly_dies_with(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net: Any = Forward(by_reference, lin=nn.Linear(8, 8)).requires_grad_(False).eval()
    net.use = lambda method, x: method(x)
    handler = Handler()
    monkeypatch.setattr(Handler, "run", lambda self, x: x * 3.0)
    net.there = weakref.WeakMethod(handler.run)
    compiled = compile(net, CompileConfig(allow_cpu=True))
    for _ in range(3):
        torch.testing.assert_close(compiled(X), net.lin(X) * 3.0)
    if what == "its object":
        del handler
    else:
        monkeypatch.undo()
    torch.testing.assert_close(compiled(X), net.lin(X))
    assert net.there() is None


SETTING = {"k": 1.0}


@functools.lru_cache
def of_setting(n: int) -> float:
    return SETTING["k"] * n


@functools.lru_cache(maxsize=4)
def list_of_setting(n: int) -> list[float]:
    return [SETTING["k"] * n]


@functools.cache
def tensor_of_setting(n: int) -> torch.Tensor:
    return torch.full((8,), SETTING["k"] * n)


@pytest.mark.parametrize(
    "read",
    [
        lambda net, x: x * of_setting(3),
        lambda net, x: x * list_of_setting(3)[0],
        lambda net, x: x * tensor_of_setting(3),
    ],
    ids=["a number", "a list", "a tensor"],
)
def test_a_cache_that_is_emptied_and_filled_again_as_far(read: Any) -> None:
    caches = (of_setting, list_of_setting, tensor_of_setting)
    for cached in caches:
        cached.cache_clear()
    SETTING["k"] = 1.0
    net: Any = Forward(read)
    net(X)
    before, _, guard = guarded(net, X)
    assert guard.changed(net) is None
    SETTING["k"] = 2.0
    for cached in caches:
        cached.cache_clear()
        cached(3), cached(3), cached(4)
    SETTING["k"] = 1.0  # what is read is as it was, and what is kept is another
    assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)


def test_a_cache_that_has_more_is_no_change() -> None:
    of_setting.cache_clear()
    SETTING["k"] = 1.0
    net: Any = Forward(lambda net, x: x * of_setting(3))
    _, _, guard = guarded(net, X)
    assert guard.changed(net) is None
    of_setting(4), of_setting(3), of_setting(5)
    assert guard.changed(net) is None


class Item:
    def __init__(self, k: float) -> None:
        self.k = k


def by_items(net: Any, x: torch.Tensor) -> torch.Tensor:
    for item in net.items:
        x = x * item.k * getattr(item, "gain_of_others", 1.0)
    return x


def test_what_is_read_of_one_that_is_as_good_is_read_of_it_too() -> None:
    net: Any = Forward(by_items)
    net.items = [Item(1.0), Item(2.0)]
    before, found, guard = guarded(net, X)
    assert isinstance(found, Trace)
    net.items[1] = Item(2.0)
    assert guard.changed(net) is None, "it is as good"
    net.items[1].gain_of_others = 3.0
    assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)
