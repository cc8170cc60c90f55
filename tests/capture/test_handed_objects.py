"""Objects and lists that a call hands out: those that it makes, each call makes anew; those that are somebody's stay
theirs.
"""

from __future__ import annotations

import collections
import contextvars
import dataclasses
import enum
import functools
import types
from collections.abc import Callable
from typing import Any, Generic, TypeVar

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.capture.test_handed_back import Seen, fused_as_uncompiled, set_on
from tests.models import Forward

T = TypeVar("T")


@dataclasses.dataclass
class Out:
    y: Any
    size: Any = None
    parts: list[Any] = dataclasses.field(default_factory=list)


@dataclasses.dataclass(frozen=True)
class Frozen:
    __slots__ = ("n", "y")
    y: Any
    n: int


@dataclasses.dataclass
class Base(Generic[T]):
    y: T


@dataclasses.dataclass
class Derived(Base[Any]):
    inner: Any = None


@dataclasses.dataclass
class Items(collections.OrderedDict):  # type: ignore[type-arg]
    """As libraries' outputs are, a dict of its own fields; one that PyTorch's pytree doesn't know."""

    y: Any

    def __post_init__(self) -> None:
        self["y"] = self.y


class Listed(list):  # type: ignore[type-arg]
    """A list of its own class."""


class Tupled(tuple):
    """A tuple of its own class."""


class Plain:
    def __init__(self, **names: Any) -> None:
        vars(self).update(names)


class Watched(Plain):
    def __del__(self) -> None:
        GONE.append(1)


class Once:
    only: Any = None

    def __new__(cls) -> Once:
        cls.only = cls.only or object.__new__(cls)
        return cls.only


class Kind(enum.Enum):
    LISTED = [1]


GONE: list[int] = []
GLOBAL, IN_A_TUPLE, BOX = Out(1), ([1], 2), Plain(k=[1])
VARIABLE = contextvars.ContextVar[list[int]]("VARIABLE")
VARIABLE.set([2])
PARTIAL = functools.partial(lambda listed, x: listed, [1])


def with_default(x: Any, listed: list[int] = [1], out: Out = Out(1)) -> tuple[Any, Any]:  # noqa: B006, B008
    return listed, out


class Holder:
    listed: Any = [1]
    out = Out(1)


@functools.cache
def cached() -> tuple[list[int], Out]:
    return [1], Out(1)


def number(value: Any) -> float:
    return float(value.sum())


def many_ways(net: Any, x: torch.Tensor) -> Any:
    """To one object: more than anybody could go."""
    out = Plain(y=net.lin(x))
    for _ in range(40):
        out = Plain(one=out, other=out)
    return out


def in_a_row(net: Any, x: torch.Tensor) -> Any:
    out = Plain(y=net.lin(x))
    for _ in range(100):
        out = Plain(inner=out)
    return out


def at_the_end(net: Any, x: Any, out: Any) -> Any:
    length = 0
    while not hasattr(out, "y"):
        out, length = getattr(out, "inner", None) or out.one, length + 1
    return length, number(out.y)


def written_through(net: Any, x: Any, out: Any) -> Any:
    out.parts[0].add_(1)
    return number(out.y), out.size is out.y


def holds_itself(net: Any, x: torch.Tensor) -> Any:
    return set_on(out := Plain(y=net.lin(x)), "me", out)


def appended(net: Any, x: Any, result: Any) -> Any:
    result[1].append(1)
    return len(result[1])


def of_its_own(pick: Callable[[Any], Any]) -> tuple[Callable[..., Any], Seen, bool]:
    return lambda net, x: (net.lin(x), pick(x)), lambda net, x, result: result[1] is pick(x), False


#: The forward, what is looked at behind each call, and whether calls are fused.
CASES: dict[str, tuple[Callable[..., Any], Seen, bool]] = {
    "a dataclass": (
        lambda net, x: Out(net.lin(x), x.shape, [x, net.lin(x)]),
        lambda net, x, out: (type(out), number(out.y), out.size, out.parts[0] is x, number(out.parts[1])),
        True,
    ),
    "a dataclass with slots": (
        lambda net, x: [Frozen(net.lin(x), 3)],
        lambda net, x, out: (type(out[0]), number(out[0].y), out[0].n),
        True,
    ),
    "one with a base, in another": (
        lambda net, x: Derived(net.lin(x), Base(x)),
        lambda net, x, out: (number(out.y), out.inner.y is x),
        True,
    ),
    "one that is a dict, too": (
        lambda net, x: Items(net.lin(x)),
        lambda net, x, out: (type(out), list(out), out["y"] is out.y, number(out.y)),
        True,
    ),
    "a list of its own class": (
        lambda net, x: set_on(Listed([net.lin(x), 3]), "k", 2),
        lambda net, x, out: (type(out), number(out[0]), out[1], out.k),
        True,
    ),
    "a tuple of its own class": (
        lambda net, x: Tupled((net.lin(x), 3)),
        lambda net, x, out: (type(out), number(out[0]), out[1]),
        True,
    ),
    "a namespace": (
        lambda net, x: types.SimpleNamespace(y=net.lin(x), n=1),
        lambda net, x, out: (type(out), number(out.y), out.n),
        True,
    ),
    "an object that the caller writes to": (lambda net, x: Plain(y=net.lin(x), n=1), lambda net, x, out: set_on(out, "n", out.n + 1).n, True),
    "one tensor twice and a part of it": (lambda net, x: (lambda y: Out(y, y, [y[0]]))(net.lin(x)), written_through, True),
    "one that is kept": (lambda net, x: set_on(net, "last", Out(y := net.lin(x), [y])).last.y * 2, lambda net, x, y: (number(net.last.y), number(y)), True),
    "numbers of all kinds": (
        lambda net, x: (net.lin(x), x.dtype, x.device, Kind.LISTED, 1j, b"", slice(1)),
        lambda net, x, out: out[1:],
        True,
    ),
    # Which of them it is can't be said of one that is made anew.
    "one object twice": (lambda net, x: [out := Out(net.lin(x)), out], lambda net, x, out: out[0] is out[1], False),
    "one that is kept, too": (lambda net, x: set_on(net, "last", Out(net.lin(x))).last, lambda net, x, out: out is net.last, False),
    "one to which many ways lead": (many_ways, at_the_end, False),
    "many in a row": (in_a_row, at_the_end, True),
    "one that holds itself": (holds_itself, lambda net, x, out: out.me is out, False),
    "one that holds the module": (lambda net, x: Plain(y=net.lin(x), net=net), lambda net, x, out: out.net is net, False),
    "one whose end is heard of": (lambda net, x: Watched(y=net.lin(x)), lambda net, x, out: number(out.y), False),
    "the only one of its class": (lambda net, x: set_on(Once(), "y", net.lin(x)), lambda net, x, out: out is Once.only, False),
    "a global object": of_its_own(lambda x: GLOBAL),
    "a class's object": of_its_own(lambda x: Holder.out),
    "a default that is an object": of_its_own(lambda x: with_default(x)[1]),
    "a cached object": of_its_own(lambda x: cached()[1]),
    "a class's list": of_its_own(lambda x: Holder.listed),
    "a default that is a list": of_its_own(lambda x: with_default(x)[0]),
    "a cached list": of_its_own(lambda x: cached()[0]),
    "a list in a context variable": of_its_own(lambda x: VARIABLE.get()),
    "a list in a tuple": of_its_own(lambda x: IN_A_TUPLE[0]),
    "a list in a partial": of_its_own(lambda x: PARTIAL(x)),
    "a list in an object": of_its_own(lambda x: BOX.k),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_object_is_made_anew_or_the_very_one(name: str) -> None:
    forward, seen, fused = CASES[name]
    assert fused_as_uncompiled(forward, seen) is fused


@pytest.mark.parametrize("which", ["a class's list", "a list in a tuple", "a list in an object", "a cached list"])
def test_what_a_child_keeps_and_hands_back_stays_its_own(which: str) -> None:
    """The caller changes it between the calls, and the child that reads it comes to run live."""
    forward, is_the_very_one, _ = CASES[which]
    child: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    handle = compile(Forward(lambda net, x: net.inner(x), inner=child), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(7):
            result = handle(torch.randn(2, 8))
            assert is_the_very_one(child, None, result)
            result[1].append(1)
