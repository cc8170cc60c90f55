"""Files that code finds by a name that it computes: what is read of them, and which file there is by that name."""

from __future__ import annotations

import importlib
import operator
import sys
import types
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core import CompileConfig, compile
from tests.models import Forward

X = torch.ones(2, 8)
_ONE, _OTHER = "a_file_by_name", "another_file_by_name"


def by_exec(net: Any) -> Any:
    names: dict[str, Any] = {}
    exec(f"import {net.file} as found", names)
    return names["found"].k


#: How code reads ``k`` of the file of the name that an attribute has.
READS: dict[str, Callable[[Any], Any]] = {
    "import_module": lambda net: importlib.import_module(net.file).k,
    "__import__": lambda net: __import__(net.file).k,
    "sys.modules": lambda net: sys.modules[net.file].k,
    "sys.modules.get": lambda net: sys.modules.get(net.file).k,  # type: ignore[union-attr]
    "where there is one": lambda net: sys.modules[net.file].k if net.file in sys.modules else 1.0,
    "getattr": lambda net: getattr(sys.modules[net.file], "k"),  # noqa: B009
    "vars": lambda net: vars(sys.modules[net.file])["k"],
    "attrgetter": lambda net: operator.attrgetter("k")(sys.modules[net.file]),
    "a loop": lambda net: next(file.k for name, file in list(sys.modules.items()) if name == net.file),
    "exec": by_exec,
}


def put(name: str, k: float) -> None:
    file = types.ModuleType(name)
    file.k = k  # type: ignore[attr-defined]
    sys.modules[name] = file


#: What happens between two calls.
CHANGES: dict[str, Callable[[Any], Any]] = {
    "its number": lambda net: setattr(sys.modules[_ONE], "k", 2.0),
    "another file": lambda net: put(_ONE, 3.0),
    "another name": lambda net: setattr(net, "file", _OTHER),
    "an object in its place": lambda net: sys.modules.update({_OTHER: types.SimpleNamespace(k=5.0)}),  # type: ignore[dict-item]
    "another object": lambda net: sys.modules.update({_OTHER: types.SimpleNamespace(k=6.0)}),  # type: ignore[dict-item]
}


@pytest.mark.parametrize("how", READS)
def test_a_file_that_is_found_by_its_name(how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (_ONE, _OTHER):
        monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    put(_ONE, 1.0)
    put(_OTHER, 4.0)
    net: Any = Forward(lambda net, x: net.linear(x) * READS[how](net), linear=nn.Linear(8, 8)).requires_grad_(False)
    net.file = _ONE
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for change in (lambda net: None, *CHANGES.values()):
            change(net)
            for _ in range(2):
                torch.testing.assert_close(handle(X), net._function(net, X))
    assert handle.engine.report.calls["fused"] >= 5, handle.engine.report.text()


@pytest.mark.parametrize(
    ("name", "first"), [("_cython_9_9", "traced"), ("cython_runtime", "traced"), ("put_there_by_hand", "eager")]
)
def test_what_a_call_puts_among_the_files(name: str, first: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A library that Cython has compiled puts one there when it is imported; whatever else code puts there is an
    effect.
    """
    monkeypatch.setitem(sys.modules, name, types.ModuleType(name))
    del sys.modules[name]

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        sys.modules.setdefault(name, types.ModuleType(name))
        return net.linear(x)  # type: ignore[no-any-return]

    net = Forward(forward, linear=nn.Linear(8, 8)).requires_grad_(False)
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        handle(X)
    assert handle.engine.report.calls == {first: 1}, handle.engine.report.text()


_SCRIPT = """
import torch
from torch import nn
from sfast_core import CompileConfig, compile

class Scaled(nn.Module):
    k = 1.0

    def forward(self, x):
        return x * self.k

net, x = Scaled(), torch.ones(2, 8)
compile(net, CompileConfig(allow_cpu=True))
with torch.no_grad():
    results = [net(x), net(x)]
    net.k = 2.0
    results += [net(x), net(x)]
"""


def test_calls_that_a_file_makes_while_it_is_imported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a_script_that_is_imported.py").write_text(_SCRIPT)
    monkeypatch.syspath_prepend(tmp_path)
    script = importlib.import_module("a_script_that_is_imported")
    monkeypatch.delitem(sys.modules, "a_script_that_is_imported")
    assert [float(result[0, 0]) for result in script.results] == [1.0, 1.0, 2.0, 2.0]


class Lazy(OrderedDict[str, float]):
    """As transformers' tables of models: what it gives is computed, and fails."""

    def items(self) -> Any:
        raise ValueError("there is no such model")

    keys = values = items


@pytest.mark.parametrize("base", [dict, OrderedDict])
def test_tables_that_compute_what_they_give_are_compared_by_what_they_hold(base: type) -> None:
    kind: Any = type("Table", (base,), dict(vars(Lazy)) | {"__dict__": None, "__weakref__": None})
    table = kind({"k": 1.0, "other": 2.0})
    net: Any = Forward(lambda net, x: net.linear(x) * net.table["k"], linear=nn.Linear(8, 8)).requires_grad_(False)
    net.table = table
    handle = compile(net, CompileConfig(allow_cpu=True))

    def check(calls: int = 2) -> None:
        for _ in range(calls):
            torch.testing.assert_close(handle(X), net._function(net, X))

    with torch.no_grad():
        check()
        assert handle.engine.report.calls["fused"] == 1, handle.engine.report.text()
        base.__setitem__(table, "k", 3.0)
        check()
        net.table = kind({"k": 4.0, "other": 2.0})
        check()
    assert handle.engine.report.calls["fused"] == 3 and not handle.engine.report.calls["eager"]


SHARED = types.ModuleType("shared_by_others")


@pytest.mark.parametrize("how", READS)
def test_what_is_only_set_in_a_file_is_repeated_beside_one_that_is_found_by_name(
    how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Forge's Deep Shrink leaves a size in a file, beside code that imports others."""
    file = types.ModuleType(_ONE)
    file.k = 2.0  # type: ignore[attr-defined]
    for each in (file, SHARED):
        monkeypatch.setitem(sys.modules, each.__name__, each)

    def forward(net: Any, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = net.linear(x) * READS[how](net)
        SHARED.seen = x.shape[0]  # type: ignore[attr-defined]
        return result

    net: Any = Forward(forward, linear=nn.Linear(8, 8)).requires_grad_(False)
    net.file = _ONE
    handle = compile(net, CompileConfig(allow_cpu=True))
    with torch.no_grad():
        for _ in range(3):
            SHARED.__dict__.pop("seen", None)
            torch.testing.assert_close(handle(X), net._function(net, X))
            del SHARED.seen  # type: ignore[attr-defined]
            handle(X)
            assert SHARED.seen == 2  # type: ignore[attr-defined]
    assert handle.engine.report.calls["fused"] >= 4 and not handle.engine.report.calls["eager"], (
        handle.engine.report.text()
    )
