"""More that steers without an attribute in a table of an object's own: what classes of C's compute, and what leads
somewhere by another way.
"""

from __future__ import annotations

import builtins
import collections
import os
import threading
import types
import typing
from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from tests.capture.guards.asked_for import of_net

Change = Callable[[Any, Any, Any], None]


class Own:
    """An object of a class of its own."""

    def __init__(self) -> None:
        self.k = 1.0


class Formatted:
    """A text that somebody has set, and what it is made of."""

    def __init__(self) -> None:
        self.text, self.own = "{0.k}", Own()


class Point(typing.NamedTuple):
    k: float = 1.0
    own: Any = None


class Word(str):
    __slots__ = ()
    k = 1.0

    def size(self) -> float:
        return self.k


class Slotted:
    __slots__ = ("k",)

    def __init__(self) -> None:
        self.k = 1.0


@typing.runtime_checkable
class HasLength(typing.Protocol):
    length: float


class Annotated:
    k: int


class Computing(types.ModuleType):
    """Of a file whose class is changed."""

    k = property(lambda self: 2.0)


def raised(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        raise net.value
    except ValueError as error:
        return x * error.args[0]


def behind_an_error(net: Any, x: torch.Tensor) -> torch.Tensor:
    try:
        net.lin(x.double())
    except RuntimeError:
        return x * read_k(net.value)
    return x


def read_k(of: Any) -> float:
    return float(of.k)


def file_with(k: float) -> types.ModuleType:
    made = types.ModuleType("a_file_of_a_test")
    made.k = k  # type: ignore[attr-defined]
    return made


def of_other_builtins() -> Any:
    names: dict[str, Any] = {"__builtins__": dict(vars(builtins))}
    exec("def size(of): return len(of)", names)
    return names["size"]


def with_globals() -> Any:
    names: dict[str, Any] = {"k": 1.0}
    exec("def read(): return None", names)
    return names["read"]


def local() -> Any:
    made = threading.local()
    made.k = 1.0
    return made


def patches(owner: Any, name: str, value: Any) -> Change:
    return lambda net, patch, folder: patch.setattr(owner, name, value)


#: As :data:`asked_for.COMPARED`.
COMPARED: dict[str, tuple[Callable[[Any, torch.Tensor], Any], Callable[[], Any], Change]] = {
    "a defaultdict's function": (
        lambda net, x: x * net.value.default_factory(), lambda: collections.defaultdict(lambda: 1.0), of_net(lambda net: setattr(net.value, "default_factory", lambda: 2.0))),
    "a defaultdict's function in a copy": (
        lambda net, x: x * net.value.copy()["k"], lambda: collections.defaultdict(lambda: 1.0), of_net(lambda net: setattr(net.value, "default_factory", lambda: 2.0))),
    "what a defaultdict's function closes over": (
        lambda net, x: x * net.value.copy()["k"], lambda: (lambda made: collections.defaultdict(lambda: made[0]))([1.0]), of_net(lambda net: net.value.default_factory.__closure__[0].cell_contents.__setitem__(0, 2.0))),
    "a kept thread's name": (lambda net, x: x * len(net.value.name), lambda: threading.Thread(name="a"), of_net(lambda net: setattr(net.value, "name", "abc"))),
    "a kept thread's name by its method": (lambda net, x: x * len(net.value.getName()), lambda: threading.Thread(name="a"), of_net(lambda net: setattr(net.value, "name", "abc"))),
    "the name of a thread in a list": (lambda net, x: x * sum(len(each.name) for each in net.value), lambda: [threading.Thread(name="a")], of_net(lambda net: setattr(net.value[0], "name", "abc"))),
    "whether a thread is a daemon": (lambda net, x: x * (2 if net.value.daemon else 1), lambda: threading.Thread(daemon=False), of_net(lambda net: setattr(net.value, "daemon", True))),
    "what an error says": (raised, lambda: ValueError(1.0), of_net(lambda net: setattr(net.value, "args", (2.0,)))),
    "a slot by the class": (lambda net, x: x * Slotted.k.__get__(net.value), Slotted, of_net(lambda net: setattr(net.value, "k", 2.0))),  # type: ignore[attr-defined]
    "whether an array may be written to": (lambda net, x: x * (1 + net.value.flags.writeable), lambda: np.ones(2), of_net(lambda net: net.value.setflags(write=False))),
    "how an array lies": (lambda net, x: x * net.value.strides[0], lambda: np.ones((2, 3)), of_net(lambda net: setattr(net, "value", np.ones((3, 2)).T))),
    "an object in a named tuple": (lambda net, x: x * net.value.own.k, lambda: Point(1.0, Own()), of_net(lambda net: setattr(net.value.own, "k", 2.0))),
    "an attribute of a text's class": (lambda net, x: x * net.value.size(), lambda: Word("a"), patches(Word, "k", 2.0)),
    "an attribute in a format": (lambda net, x: x * float(net.value.text.format(net.value.own)), Formatted, of_net(lambda net: setattr(net.value.own, "k", 2.0))),
    "a thread's own by vars": (lambda net, x: x * vars(net.value)["k"], local, of_net(lambda net: setattr(net.value, "k", 2.0))),
    "a variable in a path": (lambda net, x: x * len(os.path.expandvars("$A_VARIABLE_OF_A_TEST")), lambda: None, lambda net, patch, folder: patch.setenv("A_VARIABLE_OF_A_TEST", "1")),
    "a file's class": (lambda net, x: x * net.value.k, lambda: file_with(1.0), of_net(lambda net: setattr(net.value, "__class__", Computing))),
    "a function's own builtins": (lambda net, x: x * net.value([1]), of_other_builtins, of_net(lambda net: net.value.__globals__["__builtins__"].update(len=lambda of: 2))),
    "a function's globals": (lambda net, x: x * net.value.__globals__["k"], with_globals, of_net(lambda net: net.value.__globals__.update(k=2.0))),
    "hints of types": (lambda net, x: x * (1 + (typing.get_type_hints(Annotated)["k"] is int)), lambda: None, lambda net, patch, folder: patch.setitem(Annotated.__annotations__, "k", str)),
    "whether there is what a protocol wants": (lambda net, x: x * (1 + isinstance(net.value, HasLength)), Own, of_net(lambda net: setattr(net.value, "length", 1.0))),
    "another table of a layer's hooks": (
        lambda net, x: net.lin(x), lambda: None,
        of_net(lambda net: setattr(net.lin, "_forward_hooks", collections.OrderedDict({1: lambda layer, given, made: made * 2})))),
    "what a function reads behind a layer's error": (behind_an_error, Own, of_net(lambda net: setattr(net.value, "k", 2.0))),
    "how a layer is called": (lambda net, x: net.lin(x), lambda: None, of_net(lambda net: setattr(net.lin, "_call_impl", lambda x: x * 2))),
}  # fmt: skip
