"""Functions that a forward calls by name, in this file and in others."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import StructureGuard, stands_for
from sfast_core.capture.called import CalledGuard

#: Another file, which this one has imported.
other = types.ModuleType("other")
exec("def attention(x):\n    return softmax(x)\ndef softmax(x):\n    return x\ndef unused(x):\n    return x\n", vars(other))


def activation(x: torch.Tensor) -> torch.Tensor:
    return deeper(x)


def deeper(x: torch.Tensor) -> torch.Tensor:
    return x


def within(x: torch.Tensor) -> torch.Tensor:
    return x


def wrapped(x: torch.Tensor) -> torch.Tensor:
    return x


def of_a_partial(x: torch.Tensor) -> torch.Tensor:
    return x


def bound(x: torch.Tensor, other: int) -> torch.Tensor:
    return of_a_partial(x)


def of_a_static(x: torch.Tensor) -> torch.Tensor:
    return x


def of_a_property() -> int:
    return 1


def of_an_instance(x: torch.Tensor) -> torch.Tensor:
    return x


def of_saving(x: torch.Tensor) -> torch.Tensor:
    return x


def register(function: Callable[..., Any]) -> None:
    global callback
    callback = function


callback = of_saving


def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(function)
    def run(*args: Any) -> Any:
        return function(*args)

    return run


def bare(function: Callable[..., Any]) -> Callable[..., Any]:
    return lambda *args: function(*args)


class Proxy:
    """What answers no question before something has happened."""

    def __getattr__(self, name: str) -> Any:
        raise RuntimeError("nothing is bound")

    __module__ = property(lambda self: self.missing)  # type: ignore[assignment]


@bare
def one_wrapped_without_a_word(x: torch.Tensor) -> torch.Tensor:
    return deep_in_one(x)


@bare
def another(x: torch.Tensor) -> torch.Tensor:
    return deep_in_another(x)


def deep_in_one(x: torch.Tensor) -> torch.Tensor:
    return x


def deep_in_another(x: torch.Tensor) -> torch.Tensor:
    return x


@decorated
def thin(x: torch.Tensor) -> torch.Tensor:
    return wrapped(x)


proxy = Proxy()
part = functools.partial(bound, other=1)


class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        callback(x)
        one_wrapped_without_a_word(another(proxy))
        return sum(within(thin(part(y))) for y in self.attend(activation(x)))

    def attend(self, x: torch.Tensor) -> torch.Tensor:
        return other.attention(self.helped(x) * self.number)

    @staticmethod
    def helped(x: torch.Tensor) -> torch.Tensor:
        return of_a_static(x)

    @property
    def number(self) -> int:
        return of_a_property()

    def save(self, x: torch.Tensor) -> torch.Tensor:
        return of_saving(x)


def model() -> nn.Module:
    net = nn.Sequential(Block())
    net[0].hook = lambda x: of_an_instance(x)
    return net


HERE = globals()
CALLED = ["activation", "deeper", "within", "thin", "wrapped", "part", "of_a_partial", "of_a_static", "of_a_property", "of_an_instance"]
CALLED += ["one_wrapped_without_a_word", "another", "deep_in_one", "deep_in_another"]


@pytest.mark.parametrize(("names", "name"), [*((HERE, name) for name in CALLED), (vars(other), "attention"), (vars(other), "softmax")])
def test_a_function_that_is_called_is_part_of_it(monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str) -> None:
    """Directly or by others, by a method or within an expression, wrapped or bound, here or in another file."""
    guard = StructureGuard(model())
    monkeypatch.setitem(names, name, lambda *args: None)
    assert guard.changed() == guard.changed() == f"{names['__name__']}.{name} changed"
    monkeypatch.undo()
    assert guard.changed() is None


@pytest.mark.parametrize(("names", "name"), [(HERE, "of_saving"), (HERE, "model"), (vars(other), "unused")])
def test_a_function_that_is_not_called_is_none(monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str) -> None:
    guard = StructureGuard(model())
    monkeypatch.setitem(names, name, lambda *args: None)
    assert guard.changed() is None


def test_a_variable_is_none() -> None:
    """Whoever is to be called of something is registered there, by the file's own code: another one for each picture."""
    guard = StructureGuard(model())
    register(lambda x: x)
    assert guard.changed() is None


def test_a_function_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    guard = StructureGuard(model())
    monkeypatch.delitem(HERE, "deeper")
    assert guard.changed() == f"{__name__}.deeper changed"


def test_one_that_stands_for_it_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was there at the trace or came later; and one that stands for another is a change."""

    def in_its_place(x: torch.Tensor) -> torch.Tensor:
        return before(x)

    before, guard = activation, StructureGuard(model())
    stands_for(in_its_place, activation)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed() is None
    later = StructureGuard(model())
    monkeypatch.setitem(HERE, "deeper", lambda x: x)
    assert later.changed() == f"{__name__}.deeper changed", "what the original calls is called"
    monkeypatch.undo()
    assert later.changed() is None
    stands_for(in_its_place, deeper)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed() == f"{__name__}.activation changed"


def test_what_python_and_pytorch_have_is_not_looked_into() -> None:
    assert CalledGuard([vars(cls) for cls in nn.TransformerEncoderLayer.__mro__])._places.names == []
