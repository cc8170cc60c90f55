"""Code that runs live changes what the model reads behind it, from some call on, or back to what it was: the picture of
that very call has it.
"""

from __future__ import annotations

import copy
import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile

BOX: Any = SimpleNamespace(value=1.0, items=[1.0], table={"k": 1.0})
NUMBER = 1.0


class Registry:
    """Of a class."""

    value = 1.0


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


CASES: dict[str, tuple[Any, Any]] = {
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
