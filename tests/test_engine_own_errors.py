"""An error, of this package's own or of PyTorch's, wherever in a call it comes from: the result or the error is the
module's, what the call leaves behind is left once, and the next call is right.
"""

from __future__ import annotations

import builtins
import collections
import contextvars
import ctypes
import random
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import sfast_core
from sfast_core import CompileConfig, CompiledModule, compile
from sfast_core.runtime.graphs import DeviceGraphs
from tests.models import Forward

#: Code of this package's, by the name of its file.
_OWN: dict[str, Any] = {}
exec(
    builtins.compile("def failing(*_, **__):\n    raise ValueError('made up')\n", sfast_core.__file__, "exec"),
    _OWN,
)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = 1.0
        self.maps: list[torch.Tensor] = []

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = torch.tanh(self.linear(x))
        self.maps.append(y)
        return y * self.scale


def made() -> CompiledModule:
    torch.manual_seed(0)
    return compile(Net().eval().requires_grad_(False), CompileConfig(allow_cpu=True))


def check(handle: CompiledModule) -> None:
    """A call gives what the module gives, and leaves one map."""
    net: Any = handle.module
    x = torch.randn(2, 8)
    net.maps.clear()
    result = handle(x)
    expected = torch.tanh(net.linear(x))
    torch.testing.assert_close(result, expected * net.scale)
    (left,) = net.maps
    torch.testing.assert_close(left, expected)


#: Where an error comes from, and in which call.
FAILING = {
    "what the call read, behind it": ("sfast_core.capture.trace.RecordedCall.trace", 0),
    "its notes, behind it": ("sfast_core.capture.guards.read_set.ReadSet.finish", 0),
    "its effects": ("sfast_core.capture.trace.EffectsFinder", 0),
    "its guard": ("sfast_core.capture.guards.guard.Guard.__init__", 0),
    "its signature": ("sfast_core.capture.signature._Walk.__call__", 0),
    "PyTorch's settings": ("sfast_core.capture.signature.torch_state", 1),
    "the entries": ("sfast_core.programs.entries.CacheEntries.take", 1),
    "what is compared": ("sfast_core.capture.guards.guard.Guard._changed_types", 1),
    "what is compared, of a replay": ("sfast_core.capture.guards.guard.Guard._changed_contents", 3),
    "the result of a replay": ("sfast_core.capture.result.OutputSpec.build", 3),
    "a replay's way to the weights": ("sfast_core.graphed.GraphedProgram._check", 3),
}


@pytest.mark.parametrize("where", FAILING)
def test_an_error_of_ours_fails_no_call(where: str, graphs: DeviceGraphs, monkeypatch: pytest.MonkeyPatch) -> None:
    name, calls_before = FAILING[where]
    handle = made()
    for _ in range(calls_before):
        check(handle)
    with monkeypatch.context() as patch:
        patch.setattr(name, _OWN["failing"])
        check(handle)
    assert any("made up" in reason for reason in handle.engine.report.reasons) or "compared" in where
    for _ in range(4):
        check(handle)


def test_the_modules_own_error_is_the_callers(graphs: DeviceGraphs) -> None:
    handle = made()
    for _ in range(3):
        check(handle)
    with pytest.raises(RuntimeError, match="shapes cannot be multiplied"):
        handle(torch.randn(2, 7))
    check(handle)


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_an_interrupted_capture_of_replaced_weights_leaves_no_graph_that_reads_the_old_ones(
    graphs: DeviceGraphs, error: type[BaseException]
) -> None:
    handle = made()
    net: Any = handle.module
    for _ in range(3):
        check(handle)
    net.linear.weight = nn.Parameter(net.linear.weight * -2, requires_grad=False)
    backend: Any = graphs.backend
    backend.failures = [error()]
    with pytest.raises(error):
        handle(torch.randn(2, 8))
    replayed = handle.engine.report.calls["replayed"]
    for _ in range(3):
        check(handle)
    assert handle.engine.report.calls["replayed"] == replayed + 3


def forgets(net: Any, x: torch.Tensor) -> None:
    """Leaves things in many places."""
    net.calls += 1
    net.table["calls"] = net.table.get("calls", 0) + 1
    net.all.append(1)
    net.known.add(len(net.known))
    net.last = x
    type(net).count = getattr(type(net), "count", 0) + 1


SAID: dict[str, Callable[[Any, torch.Tensor], Any]] = {
    "what it leaves": forgets,
    "what it prints": lambda net, x: print("said"),
    "random numbers": lambda net, x: torch.randn(3),
    "Python's random numbers": lambda net, x: random.random(),
    "a buffer": lambda net, x: net.mean.add_(1),
    "an input": lambda net, x: x.add_(1),
}


@pytest.mark.parametrize("name", SAID)
def test_a_call_that_fails_leaves_what_it_leaves_once(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Whose error it is that a torch function raises isn't known while a call is recorded, and it may be made again."""

    def function(net: Any, x: torch.Tensor) -> torch.Tensor:
        SAID[name](net, x)
        y = net.lin(x)
        return torch.mm(y, y)  # fails

    found = []
    for compiles in (False, True):

        class Net(Forward):
            pass

        net: Any = Net(function, lin=nn.Linear(4, 4))
        net.calls, net.table, net.all, net.known, net.last, seen = 0, {}, [], set(), None, []
        net.register_buffer("mean", torch.zeros(1))
        handle = compile(net, CompileConfig(allow_cpu=True)) if compiles else net
        torch.manual_seed(0)
        random.seed(0)
        for _ in range(2):
            x = torch.zeros(2, 4)
            with torch.no_grad(), pytest.raises(RuntimeError, match="cannot be multiplied"):
                handle(x)
            seen += [net.calls, dict(net.table), list(net.all), set(net.known), net.last is x]
            seen += [getattr(Net, "count", 0), float(net.mean), float(x.sum()), capsys.readouterr().out]
        found.append([*seen, float(torch.rand(1)), random.random()])
    assert found[0] == found[1]


class Slots:
    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def _count(counter: Any, name: str) -> None:
    setattr(counter, name, getattr(counter, name) + 1)


def _with_a_default(count: int = 0) -> int:
    return count


def _more_by_default(function: Any) -> None:
    function.__defaults__ = (function.__defaults__[0] + 1,)


def _other_dtype(_: Any) -> None:
    torch.set_default_dtype(torch.float64 if torch.get_default_dtype() is torch.float32 else torch.float32)


#: What can't be put back: what there is, what the call does to it, and what shows that.
_LASTING: dict[str, tuple[Callable[[], Any], Callable[[Any], Any], Callable[[Any], Any]]] = {
    "a slot": (Slots, lambda value: _count(value, "count"), lambda value: value.count),
    "a context variable": (
        lambda: contextvars.ContextVar("lasting", default=0),
        lambda value: value.set(value.get() + 1),
        lambda value: value.get(),
    ),
    "an array": (lambda: np.zeros(1), lambda value: value.__iadd__(1), list),
    "bytes": (bytearray, lambda value: value.append(1), len),
    "a number of C's": (lambda: ctypes.c_int(0), lambda value: _count(value, "value"), lambda value: value.value),
    "an ordered dict": (collections.OrderedDict, lambda value: value.__setitem__(len(value), 1), len),
    "a counter": (collections.Counter, lambda value: value.update("a"), dict),
    "a default": (
        lambda: types.FunctionType(_with_a_default.__code__, {}, None, (0,)),
        _more_by_default,
        lambda value: value(),
    ),
    "a setting of PyTorch's": (lambda: None, _other_dtype, lambda value: torch.get_default_dtype()),
    "a list among the arguments": (lambda: "given", lambda value: value.append(1), len),
}


@pytest.mark.parametrize("name", _LASTING)
def test_a_call_that_fails_and_can_not_be_undone_is_not_made_again(name: str) -> None:
    first, change, show = _LASTING[name]

    def function(net: Any, x: torch.Tensor, given: list[int]) -> torch.Tensor:
        change(given if net.value == "given" else net.value)
        y = net.lin(x)
        return torch.mm(y, y)  # fails

    found = []
    for compiles in (False, True):
        net: Any = Forward(function, lin=nn.Linear(4, 4))
        net.value, given = first(), list[int]()
        handle = compile(net, CompileConfig(allow_cpu=True)) if compiles else net
        with torch.no_grad(), pytest.raises(RuntimeError, match="cannot be multiplied"):
            handle(torch.zeros(2, 4, dtype=torch.float32), given)
        found.append(show(given if net.value == "given" else net.value))
        torch.set_default_dtype(torch.float32)
    assert found[0] == found[1]
