"""What code that runs reads besides modules: functions that it calls, by name or not, in its own file and in others,
and what they read.
"""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture import Guard, Trace, stands_for
from tests.tracing import guarded

#: Another file, which this one has imported.
other = types.ModuleType("other")
exec(
    "def attention(x):\n    return softmax(x)\ndef softmax(x):\n    return x\ndef unused(x):\n    return x\n",
    vars(other),
)


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


def handed_on(value: Any) -> Any:
    return value


proxy = Proxy()
part = functools.partial(bound, other=1)


class Block(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        callback(x)
        handed_on(proxy)
        return sum(within(thin(part(y))) for y in self.attend(activation(one_wrapped_without_a_word(another(x)))))

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
    return nn.Sequential(Block())


X = torch.ones(2, 2)


def guard_of(net: nn.Module, *inputs: torch.Tensor) -> Guard:
    _, found, guard = guarded(net, *(inputs or (X,)))
    assert isinstance(found, Trace), found.reason
    return guard


HERE = globals()
CALLED = [
    "activation",
    "deeper",
    "within",
    "thin",
    "wrapped",
    "part",
    "of_a_partial",
    "of_a_static",
    "of_a_property",
    "callback",
    "handed_on",
]
CALLED += ["one_wrapped_without_a_word", "another", "deep_in_one", "deep_in_another"]


@pytest.mark.parametrize(
    ("names", "name"), [*((HERE, name) for name in CALLED), (vars(other), "attention"), (vars(other), "softmax")]
)
def test_a_function_that_is_called_is_part_of_it(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str
) -> None:
    """Directly or by others, by a method or within an expression, wrapped or bound, here or in another file."""
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(names, name, lambda *args: None)
    first = guard.changed(net)
    assert first and first.endswith(f"{name} changed") and guard.changed(net) == first
    monkeypatch.undo()
    assert guard.changed(net) is None


@pytest.mark.parametrize(
    ("names", "name"), [(HERE, "of_saving"), (HERE, "of_an_instance"), (HERE, "model"), (vars(other), "unused")]
)
def test_a_function_that_is_not_called_by_that_name_is_none(
    monkeypatch: pytest.MonkeyPatch, names: dict[str, Any], name: str
) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(names, name, lambda *args: None)
    assert guard.changed(net) is None


def test_what_a_decorator_has_put_away_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.setattr(wrapped_of(thin), "__code__", (lambda x: x * 2).__code__)
    assert str(guard.changed(net)).startswith("the code of ")
    monkeypatch.undo()
    assert guard.changed(net) is None


def wrapped_of(function: Any) -> Any:
    return function.__wrapped__


def test_a_variable_is_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever is to be called of something is registered there, by the file's own code."""
    net = model()
    guard = guard_of(net)
    monkeypatch.setitem(HERE, "callback", callback)
    register(lambda x: x)
    assert guard.changed(net) == f"{__name__}.callback changed"


def test_a_function_that_is_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    net = model()
    guard = guard_of(net)
    monkeypatch.delitem(HERE, "deeper")
    assert guard.changed(net) == f"{__name__}.deeper changed"


def test_one_that_stands_for_it_is_no_change(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it was there at the trace or came later; and one that stands for another is a change."""

    def in_its_place(x: torch.Tensor) -> torch.Tensor:
        return before(x)

    net, before = model(), activation
    guard = guard_of(net)
    stands_for(in_its_place, activation)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed(net) is None
    later = guard_of(net)
    monkeypatch.setitem(HERE, "deeper", lambda x: x * 2)
    assert later.changed(net) == f"{__name__}.deeper changed", "what the original calls is called"
    monkeypatch.undo()
    assert later.changed(net) is None
    stands_for(in_its_place, deeper)
    monkeypatch.setitem(HERE, "activation", in_its_place)
    assert guard.changed(net) == f"{__name__}.activation changed"
