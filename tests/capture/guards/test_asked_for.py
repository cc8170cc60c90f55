"""What code asks for by a call, or of a tensor, steers as what it reads does: it is asked again at each call, or leaves
no trace.
"""

from __future__ import annotations

import gc
import importlib.util
import os
import pathlib
import sys
import threading
import time
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import _prims_common, nn

from sfast_core import CompileConfig, compile
from sfast_core.capture import Trace, Untraceable
from tests.capture.guards import computed_by_c
from tests.capture.guards.asked_for import COMPARED, OF_INPUTS, REFUSED, made
from tests.models import Forward
from tests.tracing import guarded

X = torch.ones(2, 8)


class Patch(pytest.MonkeyPatch):
    """Puts back what it has changed, also by functions."""

    def __init__(self) -> None:
        super().__init__()
        self._back: list[Callable[[], Any]] = []

    def undoes(self, back: Callable[[], Any]) -> None:
        self._back.append(back)

    def undo(self) -> None:
        super().undo()
        while self._back:
            self._back.pop()()


@pytest.fixture
def patch() -> Iterator[Patch]:
    found = Patch()
    yield found
    found.undo()


def net_of(forward: Callable[[Any, torch.Tensor], Any], value: Any = None) -> Any:
    net: Any = Forward(forward, lin=nn.Linear(8, 8)).requires_grad_(False)
    net.value, net.second = value, torch.ones(8)
    return net


@pytest.mark.filterwarnings("ignore")  # a call that says one has no trace
@pytest.mark.parametrize("name", [*COMPARED, *computed_by_c.COMPARED])
def test_what_is_asked_again(name: str, patch: Patch, tmp_path: Path) -> None:
    forward, first, change = (COMPARED | computed_by_c.COMPARED)[name]
    net = net_of(forward, first())
    before, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found.reason
    assert guard.changed(net) is None
    change(net, patch, tmp_path)
    with torch.no_grad():
        assert not torch.equal(before, net(X)), "it steers"
    assert guard.changed(net)


@pytest.mark.parametrize("name", REFUSED)
def test_what_nobody_can_compare(name: str) -> None:
    forward, first, word = REFUSED[name]
    _, found, _ = guarded(net_of(forward, first()), X)
    assert isinstance(found, Untraceable) and word in found.reason, found


@pytest.mark.parametrize("name", OF_INPUTS)
def test_what_is_asked_of_an_input(name: str) -> None:
    forward, first, second = OF_INPUTS[name]
    net, handle = net_of(forward), None
    with torch.no_grad():
        expected = [net(make()) for make in (first, second)]
        assert not torch.equal(*expected), "it steers"
        handle = compile(net, CompileConfig(allow_cpu=True))
        for _ in range(3):
            for make, result in zip((first, second), expected, strict=True):
                torch.testing.assert_close(handle(make()), result)
    assert handle.engine.report.calls["fused"] >= 2


def test_a_weight_of_another_class_is_traced_anew() -> None:
    class Marked(torch.Tensor):
        """A class of its own."""

    net = net_of(lambda net, x: net.lin(x) * (2 if type(net.value) is Marked else 1) + net.value, torch.ones(8))
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        first = handle(X)
        net.value = torch.ones(8).as_subclass(Marked)
        torch.testing.assert_close(handle(X).as_subclass(torch.Tensor), (first - 1) * 2 + 1)


def test_where_autocast_is_asked_for_within_a_part_that_changes_it() -> None:
    def asks(x: torch.Tensor) -> torch.Tensor:
        return x * (2 if torch.is_autocast_enabled("cpu") else 1)

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return asks(net.lin(x).float())

    net = net_of(forward)
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace) and guard.changed(net) is None


def test_a_write_by_data_leaves_no_mark() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        x.data.mul_(2)
        return net.lin(x)

    handle = compile(net_of(forward), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            given = made()
            handle(given)
            assert given._version == 0 and torch.equal(given, made(2.0))
    assert handle.engine.report.calls["fused"] == 2


def test_a_write_that_raises_leaves_what_the_forward_leaves() -> None:
    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        x.add_(1)
        return net.lin(x)

    net, handle = net_of(forward), compile(net_of(forward), CompileConfig(allow_cpu=True))
    with torch.inference_mode():
        given, other = made() * 1, made() * 1
    with torch.no_grad():
        handle(made())
        for call, x in ((net, given), (handle, other)):
            with pytest.raises(RuntimeError, match="inference tensor"):
                call(x)
        assert torch.equal(given, other)


def _backend() -> types.ModuleType:
    """A file that was run: Python puts its builtins there, of which some look at files; and a function beside the one
    that is called does.
    """
    made = types.ModuleType("a_backend")
    exec(
        "import os\nfrom os.path import exists\ndef double(x): return x * 2\ndef load(path): return exists(path)",
        made.__dict__,
    )
    return made


def test_what_is_only_mentioned_is_no_reason() -> None:
    """A branch that isn't taken, and functions in tables that the code goes through."""

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        if net.value["slow"]:
            start = time.time()
            print(
                os.path.exists("/nowhere"),
                pathlib.Path("/nowhere").exists(),
                time.time() - start,
                threading.enumerate(),
                gc.get_count(),
            )
        chosen = [function for function in net.value["functions"] if function is torch.relu]
        return chosen[0](net.lin(x))

    net = net_of(
        forward,
        {
            "slow": False,
            "functions": [time.time, os.stat, _prims_common.ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT, torch.relu],
        },
    )
    _, found, guard = guarded(net, X)
    assert isinstance(found, Trace), found
    assert guard.changed(net) is None
    net.value["slow"] = True
    assert guard.changed(net)


ALONE: dict[str, Callable[[Any], Any]] = {
    "whether the collector is on": lambda net: gc.isenabled(),
    "who holds an object": lambda net: sys.getrefcount(net.value),
    "likewise by its dictionary": lambda net: sys.getrefcount(net.__dict__["value"]),
    "who holds a dict that was read": lambda net: (len(net.value.held), sys.getrefcount(net.value.held))[1],
    "who refers to it weakly": lambda net: weakref.getweakrefcount(net.value),
    "who refers to it": lambda net: len(gc.get_referrers(net.value)),
}


@pytest.mark.parametrize("name", ALONE)
def test_the_recorded_call_is_told_what_it_is_told_without_us(name: str) -> None:
    told: list[Any] = []

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        told.append((net.value.k, ALONE[name](net))[1])
        return net.lin(x)

    value: Any = types.SimpleNamespace(k=1, held={"a": 1})
    net = net_of(forward, value)
    with torch.no_grad():
        net(X)
        handle = compile(net, CompileConfig(allow_cpu=True))
        handle(X), handle(X)
    assert told[1:] == told[:1] * 2 and handle.engine.report.calls["eager"] == 1 and gc.isenabled()


class Registry(nn.Module):
    """Takes its function out of a table of files by a name that it computes, as comfy-kitchen does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.backends, self.name = nn.Linear(8, 8), {"eager": _backend()}, "dou"

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        backend = next(iter(self.backends.values()))
        return getattr(backend, self.name + "ble")(self.layer(x))


def test_what_is_only_there_beside_what_is_called_is_no_reason() -> None:
    handle = compile(Registry().eval(), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            handle(torch.randn(2, 8))
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, handle.engine.report.reasons


def test_what_an_installed_package_looks_at_for_itself_is_no_reason(tmp_path: Path) -> None:
    """As psutil does, whom ComfyUI asks how much memory is free."""
    package = tmp_path / "site-packages" / "a_monitor.py"
    package.parent.mkdir()
    package.write_text("def free():\n    with open('/dev/null') as file:\n        return len(file.read())\n")
    spec = importlib.util.spec_from_file_location("a_monitor", package)
    assert spec is not None and spec.loader is not None
    monitor = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(monitor)

    class Asking(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(8, 8)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(x) if monitor.free() >= 0 else x

    handle = compile(Asking().eval(), CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            handle(torch.randn(2, 8))
    assert handle.engine.report.calls == {"traced": 1, "fused": 2}, handle.engine.report.reasons
