"""Code that runs live changes what the model reads behind it, from some call on, or back to what it was: the picture of
that very call has it.
"""

from __future__ import annotations

import contextvars
import copy
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

BOX: Any = SimpleNamespace(value=1.0, items=[1.0], table={"k": 1.0})
NUMBER = 1.0


class Registry:
    """Of a class."""

    value = 1.0


class Slotted:
    """Of which no table of attributes has anything; set by a method of its own."""

    __slots__ = ("value",)

    def __init__(self) -> None:
        self.value = 1.0

    def rise(self, value: float) -> None:
        self.value = value


class Behind:
    """What is set by a name is kept under another."""

    def __init__(self) -> None:
        self._value = 1.0

    @property
    def value(self) -> float:
        return self._value

    @value.setter
    def value(self, value: float) -> None:
        self._value = value


def of_a_default(value: float = 1.0) -> float:
    return value


def of_its_code() -> float:
    return 1.0


def variable(value: float) -> tuple[Callable[[], float], Callable[[float], None]]:
    """What tells what is in a variable, and what sets that."""

    def set_it(to: float) -> None:
        nonlocal value
        value = to

    return lambda: value, set_it


class Plain:
    """Its class is set, or its attributes all at once."""

    factor = 1.0


class Other:
    """The class that it is given."""

    factor = 5.0


class Dict:
    """Likewise a dict of attributes."""


SLOTTED, BEHIND, ARRAY, VARIABLE = Slotted(), Behind(), np.ones(1), contextvars.ContextVar("VARIABLE", default=1.0)
TOLD, SET = variable(1.0)
CODE = of_its_code.__code__
PLAIN, WITH_DICT = Plain(), Dict()


class Live(nn.Module):
    """Counts its calls, and so runs live; sets something from the sixth on."""

    def __init__(self, sets: Callable[[Any, float], None]) -> None:
        super().__init__()
        self.linear, self.sets, self.n, self.gain, self.net = nn.Linear(8, 8), sets, 0, 1.0, SimpleNamespace()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.n += 1
        if self.n > 5:
            self.sets(self, float(self.n % 4))
        return self.linear(x)


class Net(nn.Module):
    """Reads something behind such a module."""

    def __init__(self, sets: Any, reads: Any) -> None:
        super().__init__()
        self.live, self.layer, self.reads = Live(sets), nn.Linear(8, 8), reads
        self.factor, self.table = 1.0, torch.ones(8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        h = self.live(x)
        return self.layer(h) * self.table * self.reads(self)


def _sets_own(live: Any, value: float) -> None:
    live.gain = value


def _sets_by_name(live: Any, value: float) -> None:
    setattr(live, "gain", value)  # noqa: B010


def _sets_root(live: Any, value: float) -> None:
    live.net.root.factor = value


def _sets_object(live: Any, value: float) -> None:
    BOX.value = value


def _sets_item(live: Any, value: float) -> None:
    BOX.items[0] = value


def _appends(live: Any, value: float) -> None:
    BOX.items.append(value)


def _updates(live: Any, value: float) -> None:
    BOX.table.update(k=value)


def _sets_class(live: Any, value: float) -> None:
    Registry.value = value


def _sets_global(live: Any, value: float) -> None:
    global NUMBER
    NUMBER = value


def _sets_environment(live: Any, value: float) -> None:
    os.environ["FACTOR_OF_A_TEST"] = str(value)


def _puts_a_weight(live: Any, value: float) -> None:
    live.net.root.layer.weight = nn.Parameter(live.net.root.layer.weight * 1.1, requires_grad=False)


def _puts_a_tensor(live: Any, value: float) -> None:
    live.net.root.table = live.net.root.table * 1.1


def _trains(live: Any, value: float) -> None:
    live.net.root.layer.train(value > 1)


def _hooks(live: Any, value: float) -> None:
    if not live.net.root.layer._forward_hooks:
        live.net.root.layer.register_forward_hook(lambda module, args, result: result * 3)


def _sets_a_slot(live: Any, value: float) -> None:
    SLOTTED.rise(value)


def _sets_a_property(live: Any, value: float) -> None:
    BEHIND.value = value


def _adds_to_an_array(live: Any, value: float) -> None:
    array = ARRAY
    array += value


def _sets_a_context_variable(live: Any, value: float) -> None:
    VARIABLE.set(value)


def _sets_a_variable(live: Any, value: float) -> None:
    SET(value)


def _sets_a_default(live: Any, value: float) -> None:
    of_a_default.__defaults__ = (value,)


def _sets_code(live: Any, value: float) -> None:
    of_its_code.__code__ = (lambda: 5.0).__code__ if value > 1 else CODE


def _sets_its_class(live: Any, value: float) -> None:
    PLAIN.__class__ = Other if value > 1 else Plain  # type: ignore[assignment]


def _sets_its_dict(live: Any, value: float) -> None:
    if vars(WITH_DICT) != {"value": value}:
        WITH_DICT.__dict__ = {"value": value}


def _sets_threads(live: Any, value: float) -> None:
    torch.set_num_threads(1 + int(value > 1))


def _sets_the_dtype(live: Any, value: float) -> None:
    torch.set_default_dtype(torch.float64 if value > 1 else torch.float32)


CASES: dict[str, tuple[Any, Any]] = {
    "a slot, by a method": (_sets_a_slot, lambda net: SLOTTED.value),
    "a property": (_sets_a_property, lambda net: BEHIND.value),
    "an array in place": (_adds_to_an_array, lambda net: float(ARRAY[0])),
    "a context variable": (_sets_a_context_variable, lambda net: VARIABLE.get()),
    "a variable of another function": (_sets_a_variable, lambda net: TOLD()),
    "a function's default": (_sets_a_default, lambda net: of_a_default()),
    "a function's code": (_sets_code, lambda net: of_its_code()),
    "its class": (_sets_its_class, lambda net: PLAIN.factor),
    "its dict of attributes": (_sets_its_dict, lambda net: WITH_DICT.value),
    "the number of threads": (_sets_threads, lambda net: torch.get_num_threads()),
    "PyTorch's dtype": (_sets_the_dtype, lambda net: torch.ones(8)),
    "an attribute of its own": (_sets_own, lambda net: net.live.gain),
    "an attribute by its name": (_sets_by_name, lambda net: net.live.gain),
    "the root's": (_sets_root, lambda net: net.factor),
    "an object's": (_sets_object, lambda net: BOX.value),
    "an item": (_sets_item, lambda net: BOX.items[0]),
    "one more item": (_appends, lambda net: sum(BOX.items)),
    "an item of a dict": (_updates, lambda net: BOX.table["k"]),
    "a class's": (_sets_class, lambda net: Registry.value),
    "a global": (_sets_global, lambda net: NUMBER),
    "the environment": (_sets_environment, lambda net: float(os.environ.get("FACTOR_OF_A_TEST", "1"))),
    "another weight": (_puts_a_weight, lambda net: 1.0),
    "another tensor": (_puts_a_tensor, lambda net: 1.0),
    "another mode": (_trains, lambda net: 2.0 if net.layer.training else 1.0),
    "a hook": (_hooks, lambda net: 1.0),
}


@pytest.mark.parametrize("back", [False, True])
@pytest.mark.parametrize("case", list(CASES))
def test_what_live_code_changes_is_read_behind_it(case: str, back: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """``back``: somebody puts it back after each call, so that it is found as it was when the next one begins."""
    eager = Net(*CASES[case]).eval().requires_grad_(False)
    ours = copy.deepcopy(eager)
    compiled = compile(ours, CompileConfig(allow_cpu=True))
    xs = torch.randn(12, 2, 8)

    def put_back(net: Net) -> None:
        global NUMBER
        BOX.value, BOX.items, BOX.table, Registry.value, NUMBER = 1.0, [1.0], {"k": 1.0}, 1.0, 1.0
        os.environ.pop("FACTOR_OF_A_TEST", None)
        SLOTTED.value = BEHIND.value = ARRAY[:] = 1.0
        PLAIN.__class__, WITH_DICT.value = Plain, 1.0
        VARIABLE.set(1.0)
        SET(1.0)
        of_a_default.__defaults__, of_its_code.__code__ = (1.0,), CODE
        torch.set_num_threads(1)
        torch.set_default_dtype(torch.float32)
        net.factor = net.live.gain = 1.0
        net.layer.eval()

    def pictures(net: Net, call: Any) -> list[torch.Tensor]:
        net.live.net.root = net
        put_back(net)
        found = []
        for x in xs:
            found.append(call(x))
            if back:
                put_back(net)
        put_back(net)
        return found

    monkeypatch.delenv("FACTOR_OF_A_TEST", raising=False)
    with torch.no_grad():
        expected = pictures(eager, eager)
        for step, (got, then) in enumerate(zip(pictures(ours, compiled), expected, strict=True)):
            torch.testing.assert_close(got, then, msg=lambda text, step=step: f"call {step}: {text}")
    assert ours.live.n == eager.live.n == len(xs)
    assert compiled.engine.report.calls["fused"]
