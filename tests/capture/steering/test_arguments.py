"""Objects among a call's arguments: of those that nothing is read of a trace serves any, and the others are nothing to
trace.
"""

from __future__ import annotations

import functools
import operator
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

X = torch.linspace(-1.0, 2.0, 16).reshape(2, 8)
KEY = "state"


class State:
    """What another node puts among the options."""

    kind = 1.0

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale
        self.inner = {"scale": scale}
        self.seen = 0

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def __iter__(self) -> Any:
        return iter([self.scale])

    def __bool__(self) -> bool:
        return self.scale > 1

    def __eq__(self, other: object) -> bool:
        return self.scale == other

    __hash__ = None  # type: ignore[assignment]

    def times(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale

    def is_one(self) -> bool:
        return operator.is_(self, ONE)

    @property
    def doubled(self) -> float:
        return self.scale * 2


ONE = State()


class Slotted:
    __slots__ = ("scale",)

    def __init__(self, scale: float = 1.0) -> None:
        self.scale = scale


class Part(nn.Module):
    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x * self.scale


class Net(nn.Module):
    def __init__(self, use: Callable[[torch.Tensor, Any], torch.Tensor]) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.use = use

    def forward(self, x: torch.Tensor, options: Any) -> torch.Tensor:
        return self.use(self.linear(x), options)


def copied(x: torch.Tensor, options: Any) -> torch.Tensor:
    options = {**options.copy(), "block": 1}
    return x + len(options)


def handed(x: torch.Tensor, options: Any) -> torch.Tensor:
    return copied(x, options=options)


def counted(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x + sum(value is None for value in options.values())


def of_a_class(x: torch.Tensor, options: Any) -> torch.Tensor:
    return x + sum(isinstance(value, State) for value in options.values())


def scaled(x: torch.Tensor, state: Any) -> torch.Tensor:
    return x * state.scale


def written(x: torch.Tensor, options: Any) -> torch.Tensor:
    options[KEY].seen = 1
    return x


UNREAD: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "not at all": lambda x, options: x + options["step"],
    "copied": copied,
    "handed on": handed,
    "counted": counted,
    "asked for its class": of_a_class,
}

READ: dict[str, Callable[[torch.Tensor, Any], torch.Tensor]] = {
    "by its name": lambda x, options: x * options["state"].scale,
    "by a name that is asked for": lambda x, options: x * options.get("state").scale,
    "by a computed name": lambda x, options: x * options[KEY].scale,
    "by any name": lambda x, options: x * getattr(options[KEY], "".join(["sc", "ale"])),
    "in a loop": lambda x, options: sum(x * value.scale for value in options.values() if type(value) is State),
    "called in a loop": lambda x, options: sum(value(x) for value in options.values() if type(value) is State),
    "by a method": lambda x, options: options[KEY].times(x),
    "by a property": lambda x, options: x * options[KEY].doubled,
    "by a part of it": lambda x, options: x * options[KEY].inner["scale"],
    "by iteration": lambda x, options: x * next(iter(options[KEY])),
    "by its truth": lambda x, options: x * (2 if options[KEY] else 1),
    "compared": lambda x, options: x * (2 if options[KEY] == 1.0 else 1),
    "by a function": lambda x, options: scaled(x, options[KEY]),
    "by a copy": lambda x, options: x * (2 if {**options}["state"] is ONE else 1),
    "by a method that asks which it is": lambda x, options: x * (2 if options[KEY].is_one() else 1),
    "by its class": lambda x, options: x * options[KEY].kind,
    "written to": written,
    "all that it has": lambda x, options: x * vars(options[KEY])["scale"],
}


def calls(net: Net, options: Callable[[float], Any]) -> tuple[Counter[str], Any]:
    """What became of a call with each of several objects, which gave what the module gives."""
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for scale in (1.0, 3.0, 0.5):
            torch.testing.assert_close(net(X, options(scale)), net.use(net.linear(X), options(scale)))
    report = handle.engine.report
    return report.calls, report


@pytest.mark.parametrize("kind", [State, Slotted, Part, lambda scale: SimpleNamespace(scale=scale)])
@pytest.mark.parametrize("name", UNREAD)
def test_any_object_that_nothing_is_read_of_is_as_good(name: str, kind: Any) -> None:
    found, report = calls(Net(UNREAD[name]), lambda scale: {"state": kind(scale), "step": 2})
    assert found["traced"] == 1 and found["fused"] == 2 and not found["eager"], report.reasons


@pytest.mark.parametrize("name", READ)
def test_an_object_that_is_read_is_nothing_to_trace(name: str) -> None:
    found, report = calls(Net(READ[name]), lambda scale: {"state": State(scale), "step": 2})
    assert found["traced"] == 1 and found["eager"] == 2 and not found["fused"], found
    assert all("['state'] holds a State, which can't be part of a signature" in reason for reason in report.reasons), (
        report.reasons
    )


def test_an_object_in_a_list_goes_by_the_name_of_the_list() -> None:
    def options(scale: float) -> Any:
        return {"states": [State(scale)], "step": 2}

    found, _ = calls(Net(lambda x, given: x + given["step"]), options)
    assert found["fused"] == 2
    found, report = calls(Net(lambda x, given: x * given["states"][0].scale), options)
    assert not found["fused"] and any("['states'][0] holds a State" in reason for reason in report.reasons)


def test_an_argument_that_is_an_object() -> None:
    found, _ = calls(Net(lambda x, state: x * 2), State)
    assert found["fused"] == 2
    found, report = calls(Net(lambda x, state: x * state.scale), State)
    assert not found["fused"] and any("args[1] holds a State" in reason for reason in report.reasons)


def test_one_object_twice_is_not_two() -> None:
    net = Net(lambda x, given: x * (2 if given["a"] is given["b"] else 3))
    handle = compile(net, CompileConfig(allow_cpu=True))
    one, other = SimpleNamespace(), SimpleNamespace()
    with torch.no_grad():
        for a, b in ((one, one), (one, other), (other, other), (other, one)):
            torch.testing.assert_close(net(X, {"a": a, "b": b}), net.use(net.linear(X), {"a": a, "b": b}))
    assert handle.engine.report.calls["eager"] or handle.engine.report.calls["traced"] == 2


def test_of_another_class_is_another_call() -> None:
    net = Net(of_a_class)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for value in (State(), Slotted(), State(), Slotted()):
            torch.testing.assert_close(net(X, {"state": value}), net.use(net.linear(X), {"state": value}))
    assert handle.engine.report.calls["traced"] == 2 and handle.engine.report.calls["fused"] == 2


def test_a_function_is_no_part_of_a_signature() -> None:
    for function in (torch.relu, functools.partial(torch.mul, other=2), lambda x: x, State().times):
        found, report = calls(
            Net(lambda x, given: x + given["step"]), lambda scale, function=function: {"f": function, "step": 2}
        )
        assert found["eager"] == 3 and any("which can't be part of a signature" in reason for reason in report.reasons)


def test_what_was_read_once_is_recorded_no_more_until_all_is_forgotten() -> None:
    net = Net(lambda x, given: x * given["state"].scale)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for rows in range(1, 5):
            net(X[:1].expand(rows, 8), {"state": State()})
    assert handle.engine.report.calls["traced"] == 1 and handle.engine.report.calls["eager"] == 3
    net.use = lambda x, given: x * 2
    handle.engine.reset()
    with torch.no_grad():
        net(X, {"state": State()}), net(X, {"state": State()})
    assert handle.engine.report.calls["fused"] == 1
