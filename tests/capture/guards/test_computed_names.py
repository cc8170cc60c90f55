"""Attributes that code reads by names which it computes, of whatever: an object that a function gives, an item, a file,
a class.
"""

from __future__ import annotations

import importlib
import inspect
import math
import operator
import sys
from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Guard, Trace, Untraceable
from tests.models import Forward
from tests.tracing import guarded

X = torch.ones(2, 3)


class Options:
    def __init__(self) -> None:
        self.scale = 1.0


class Slots:
    __slots__ = ("scale",)

    def __init__(self) -> None:
        self.scale = 1.0


class OfItsClass:
    scale = 1.0


class Aliases:
    """Gives an attribute by another's name, as transformers' configs do by their ``attribute_map``."""

    def __init__(self) -> None:
        self.names = {"scale": "factor"}
        self.factor, self.other = 1.0, 2.0

    def __getattribute__(self, name: str) -> Any:
        names = super().__getattribute__("names")
        if name in names:
            name = names[name]
        return super().__getattribute__(name)


class Prefixed(Aliases):
    """Likewise, without a variable of that name."""

    def __getattribute__(self, name: str) -> Any:
        return object.__getattribute__(self, object.__getattribute__(self, "names").get(name, name))


class Extra:
    """Keeps attributes in a slot, as pydantic's models keep those that aren't declared."""

    __slots__ = ("__dict__", "__extra__")

    def __init__(self) -> None:
        self.__extra__ = {"scale": 1.0}

    def __getattr__(self, name: str) -> Any:
        try:
            return object.__getattribute__(self, "__extra__")[name]
        except KeyError:
            raise AttributeError(name) from None


class Named:
    """The options by a property, and by a method."""

    def __init__(self, options: Any) -> None:
        self._all = [options]

    @property
    def options(self) -> Any:
        return self._all[0]

    def get(self) -> Any:
        return self._all[0]


def given(net: Any) -> Any:
    return net.all[0]


def _loop(net: Any, x: torch.Tensor) -> torch.Tensor:
    for options in net.all:
        x = x * getattr(options, net.name)
    return x


def _index(net: Any, x: torch.Tensor) -> torch.Tensor:
    last = len(net.all) - 1
    return x * getattr(net.all[last], net.name)


def _key(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * getattr(net.by_key[net.key], net.name)


def _handed_on(net: Any, x: torch.Tensor) -> torch.Tensor:
    return x * _of_a_list(net.all, net.name)


def _of_a_list(options: list[Any], name: str) -> float:
    return float(getattr(options[-1 * len(options)], name))


def _kept(read: Any, name: str) -> float:
    return float(read(name))


def _plain(found: Any, of: Any) -> float:
    return float(found.__get__(of) if hasattr(found, "__get__") else found)


READERS: dict[str, Callable[..., torch.Tensor]] = {
    "an attribute": lambda net, x: x * getattr(net.options, net.name),
    "what a function gives": lambda net, x: x * getattr(given(net), net.name),
    "a property": lambda net, x: x * getattr(net.named.options, net.name),
    "what a method gives": lambda net, x: x * getattr(net.named.get(), net.name),
    "an item": _index,
    "an item of a dict": _key,
    "an item of an argument": _handed_on,
    "each item": _loop,
    "each item, by a comprehension": lambda net, x: (
        x * sum([getattr(options, name) for options in net.all for name in [net.name]])
    ),
    "vars": lambda net, x: x * vars(given(net))[net.name],
    "its dictionary": lambda net, x: x * given(net).__dict__[net.name],
    "attrgetter": lambda net, x: x * operator.attrgetter(net.name)(given(net)),
    "object's way": lambda net, x: x * object.__getattribute__(given(net), net.name),
    "its own way": lambda net, x: x * given(net).__getattribute__(net.name),
    "its own way, kept": lambda net, x: x * _kept(given(net).__getattribute__, net.name),
    "a method's name": lambda net, x: x * operator.methodcaller("__getattribute__", net.name)(given(net)),
    "inspect": lambda net, x: x * _plain(inspect.getattr_static(given(net), net.name), given(net)),
    "hasattr": lambda net, x: x * (3 if hasattr(given(net), "other_" + net.name) else 1),
}


def _net(reader: Callable[..., torch.Tensor], options: Any) -> Any:
    net = Forward(reader)
    net.options, net.all, net.by_key, net.named, net.name, net.key = (
        options,
        [options],
        {"a": options},
        Named(options),
        "scale",
        "a",
    )
    return net


def _recorded(net: nn.Module) -> Guard:
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found
    return guard


@pytest.mark.parametrize("name", READERS)
@pytest.mark.parametrize("kind", [Options, Slots, OfItsClass])
def test_a_change_is_noticed(monkeypatch: pytest.MonkeyPatch, name: str, kind: type) -> None:
    if kind is not Options and name in ("vars", "its dictionary"):
        pytest.skip("it has none")
    options = kind()
    net = _net(READERS[name], options)
    guard = _recorded(net)
    assert guard.changed(net) is None
    if name == "hasattr":
        if kind is Slots:
            pytest.skip("it takes no other attribute")
        options.other_scale = True
    elif kind is OfItsClass:
        monkeypatch.setattr(kind, "scale", 3.0)
    else:
        options.scale = 3.0
    assert guard.changed(net) is not None


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        (Aliases, lambda options: setattr(options, "factor", 3.0)),
        (Aliases, lambda options: options.names.update(scale="other")),
        (Prefixed, lambda options: setattr(options, "factor", 3.0)),
        (Prefixed, lambda options: options.names.update(scale="other")),
        (Extra, lambda options: options.__extra__.update(scale=3.0)),
        (Extra, lambda options: setattr(options, "__extra__", {"scale": 3.0})),
        (Extra, lambda options: setattr(options, "scale", 3.0)),
    ],
)
def test_an_attribute_that_its_class_looks_up(kind: type, change: Callable[[Any], None]) -> None:
    net = _net(lambda net, x: x * net.options.scale, kind())
    guard = _recorded(net)
    assert guard.changed(net) is None
    change(net.options)
    assert guard.changed(net) is not None


@pytest.mark.parametrize("library", [torch.nn.functional, torch, nn, math], ids=lambda library: library.__name__)
@pytest.mark.parametrize("how", ["getattr(library, net.name)", "vars(library)[net.name]", "library.__dict__[net.name]"])
def test_a_function_of_a_library_that_is_replaced(
    monkeypatch: pytest.MonkeyPatch, library: ModuleType, how: str
) -> None:
    name, given = {nn: ("Tanh", "()(x)"), math: ("sqrt", "(4.0) * x")}.get(library, ("tanh", "(x)"))
    names: dict[str, Any] = {"library": library}
    exec(f"def forward(net, x):\n    return {how}{given}\n", names)
    net = Forward(names["forward"])
    net.name = name
    guard = _recorded(net)
    assert guard.changed(net) is None
    monkeypatch.setattr(library, name, lambda *_: lambda x: x)
    assert guard.changed(net) is not None


def test_an_attribute_of_an_instance_in_front_of_its_classs() -> None:
    net = _net(READERS["what a function gives"], OfItsClass())
    guard = _recorded(net)
    net.options.scale = 3.0
    assert guard.changed(net) is not None


def test_an_attribute_of_a_layer() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        for layer in net.layers:
            x = layer(x) * getattr(layer, net.name)
        return x

    net = Forward(forward, layers=nn.ModuleList([nn.Linear(3, 3)]))
    net.layers[0].scale, net.name = 1.0, "scale"
    guard = _recorded(net)
    net.layers[0].scale = 3.0
    assert guard.changed(net) is not None


def function_with_attributes() -> None:
    """Somebody keeps a setting at it."""


@pytest.mark.parametrize("what", ["a file", "a file by its name", "a class", "a function"])
def test_what_is_no_object(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    settings = ModuleType("settings_of_a_test")
    monkeypatch.setitem(sys.modules, "settings_of_a_test", settings)
    names: dict[str, Any] = {
        "settings": settings,
        "OfItsClass": OfItsClass,
        "function": function_with_attributes,
        "load": importlib.import_module,
    }
    target, source = {
        "a file": (settings, "settings"),
        "a file by its name": (settings, "load('settings_' + net.rest)"),
        "a class": (OfItsClass, "OfItsClass"),
        "a function": (function_with_attributes, "function"),
    }[what]
    exec(f"def forward(net, x):\n    return x * getattr({source}, net.name)\n", names)
    monkeypatch.setattr(target, "scale", 1.0, raising=False)
    net = Forward(names["forward"])
    net.name, net.rest = "scale", "of_a_test"
    guard = _recorded(net)
    assert guard.changed(net) is None
    monkeypatch.setattr(target, "scale", 3.0)
    assert guard.changed(net) is not None


def test_a_counter_is_no_effect() -> None:
    """What is read and written by names that are computed is one call's for the next to read."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        options = given(net)
        setattr(options, net.name, getattr(options, net.name) + 1)
        return x * getattr(options, net.name)

    net = _net(forward, Options())
    _, found, _ = guarded(net, X)
    assert isinstance(found, Untraceable) and found.changing, found


ASK, GET, TABLE = object.__getattribute__, operator.attrgetter, operator.attrgetter("__dict__")
TABLES: dict[str, Callable[[Any], dict[str, Any]]] = {
    "by its name": lambda options: options.__dict__,
    "object's way": lambda options: object.__getattribute__(options, "__dict__"),
    "object's way, kept": lambda options: ASK(options, "__dict__"),
    "its own way": lambda options: options.__getattribute__("__dict__"),
    "attrgetter": lambda options: operator.attrgetter("__dict__")(options),
    "attrgetter, kept": lambda options: GET("scale", "__dict__")(options)[1],
    "a getter that is kept": lambda options: TABLE(options),
    "a method's name": lambda options: operator.methodcaller("__getattribute__", "__dict__")(options),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_counter_in_a_dict_of_attributes(name: str) -> None:
    """However code comes by the dict, what it reads of it and writes to it are attributes."""
    table_of = TABLES[name]

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        table = table_of(net.options)
        table["calls"] = table.get("calls", 0) + 1
        return x * table["calls"]

    _, found, _ = guarded(_net(forward, Options()), X)
    assert isinstance(found, Untraceable) and found.changing, found


class Registry:
    """Finds an implementation by name, as libraries of kernels do."""

    def __init__(self) -> None:
        self._backends = {"a": SimpleNamespace(double=lambda x: x * 2)}

    def find(self, backend: str, name: str) -> Any:
        return getattr(self._backends[backend], name)


def test_an_item_that_is_read_by_a_computed_name_is_not_just_any_object() -> None:
    """An object among a call's arguments that the model doesn't read stays unread beside it."""
    net = Forward(lambda net, x, options: net.registry.find(net.key, net.name)(x))
    net.registry, net.key, net.name = Registry(), "a", "dou" + "ble"
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            assert torch.equal(handle(X, Options()), X * 2)
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}
