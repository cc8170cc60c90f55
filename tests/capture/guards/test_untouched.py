"""Is each way to write to a dict noticed? And what nobody wrote to not looked at?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from sfast_core.capture.guards import untouched
from sfast_core.capture.guards.guard import Guard
from sfast_core.capture.guards.notes import Row
from sfast_core.capture.guards.places import Places
from sfast_core.capture.guards.untouched import Untouched, version_of_attributes, version_of_dicts
from tests.capture.guards.guarded import guard_of

_OFTEN = 100

Table = dict[Any, Any]
WRITES: dict[str, Callable[[Table], Any]] = {
    "a value": lambda table: table.update(a=2),
    "one more": lambda table: table.update(c=2),
    "another in the place of one": lambda table: (table.pop("a"), table.update(c=2)),
    "a default": lambda table: table.setdefault("c", 1),
    "one is taken away": lambda table: table.pop("a"),
    "deleted": lambda table: table.__delitem__("a"),
    "the last is taken away": lambda table: table.popitem(),
    "merged": lambda table: table.__ior__({"a": 2}),
    "made anew": lambda table: table.__init__(a=2),  # type: ignore[misc]
    "emptied": lambda table: table.clear(),
    "emptied and filled": lambda table: (table.clear(), table.update({"a": 2, "b": 2})),
}


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("number", [1, 3])
def test_a_write_is_noticed(write: str, number: int) -> None:
    tables: list[Table] = [{"a": 1, "b": index} for index in range(number)]
    watched = Untouched(tables, version_of_dicts())
    assert watched.written() != []
    watched.settle()
    assert watched.written() == [] and watched.written() == []
    WRITES[write](tables[-1])
    assert watched.written() != []
    assert watched.written() is None, "nobody has looked at it"
    watched.settle()
    assert watched.written() == []


@pytest.mark.parametrize("fill", [lambda table: table.update({"a": 1}), lambda table: table.update(a=1)])
def test_what_is_empty_is_filled(fill: Callable[[Table], None]) -> None:
    """By a copy of another dict: of that Python tells nobody."""
    table: Table = {"a": 1}
    watched = Untouched([table, {}], version_of_dicts())
    for _ in range(2):
        table.clear()
        assert watched.written() != []
        watched.settle()
        fill(table)
        assert watched.written() != []
        watched.settle()
        assert watched.written() == []


class Value:
    def __init__(self) -> None:
        self.a, self.b = 1, 2


def _set(value: Value) -> None:
    value.a = 3


ATTRIBUTES: dict[str, Callable[[Any], Any]] = {
    "set": lambda value: setattr(value, "a", 2),
    "set by code that runs often": _set,
    "one more": lambda value: setattr(value, "c", 2),
    "deleted": lambda value: delattr(value, "b"),
    "in its dict": lambda value: vars(value).update(a=2),
}


@pytest.mark.parametrize("write", ATTRIBUTES)
@pytest.mark.parametrize("table_first", [True, False])
def test_an_attribute_that_is_set_is_noticed(write: str, table_first: bool) -> None:
    for _ in range(_OFTEN):
        other = Value()
        if table_first:
            vars(other)
        _set(other)
    value = Value()
    watched = Untouched([vars(value)], version_of_attributes())
    watched.written()
    watched.settle()
    ATTRIBUTES[write](value)
    assert watched.written() != []


@pytest.mark.skipif(sys.version_info >= (3, 13), reason="Python 3.13.0 doesn't tell of attributes")
def test_python_tells_of_attributes() -> None:
    assert version_of_attributes() is not None


def test_python_that_does_not_tell_is_not_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch._C._dynamo.guards, "dict_version", lambda table: 7)
    for version in (version_of_dicts, version_of_attributes):
        version.cache_clear()
    try:
        assert version_of_dicts() is None and version_of_attributes() is None
        assert Untouched([{}], version_of_dicts()).written() is None
    finally:
        monkeypatch.undo()
        for version in (version_of_dicts, version_of_attributes):
            version.cache_clear()


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(4, 4)
        self.scale = 2.0
        self.scales = {"a": [1.0]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x) * self.scale * self.scales["a"][0]


def test_only_what_was_written_to_is_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    if version_of_attributes() is None:
        pytest.skip("Python doesn't tell of attributes")
    net = nn.Sequential(Net(), Net())
    guard = guard_of(net, torch.ones(1, 4))
    assert guard.changed(net) is None
    compared: list[Row] = []
    compare = Places._moved_in
    monkeypatch.setattr(Places, "_all_the_same", lambda places: pytest.fail("all are compared"))
    monkeypatch.setattr(Places, "_moved_in", lambda places, rows: compare(places, compared.extend(rows) or rows))
    assert guard.changed(net) is None and not compared
    for _ in range(3):
        net[0].scale = float("2")
        compared.clear()
        assert guard.changed(net) is None
        assert {id(row.table) for row in compared} == {id(vars(net[0]))}
    net[0].scale = 3.0
    assert guard.changed(net) == "0.scale changed"


def test_what_was_taken_for_the_same_is_compared_again() -> None:
    net = nn.Sequential(Net(), Net())
    guard = guard_of(net, torch.ones(1, 4))
    for scale, change in ((2.0, None), (3.0, "1.scale changed"), (2.0, None), (3.0, "1.scale changed")):
        net[1].scale = float(str(scale))
        assert guard.changed(net) == change
        assert guard.changed(net) == change


@pytest.mark.parametrize("tells", [True, False])
def test_what_is_as_good_is_still_looked_at(monkeypatch: pytest.MonkeyPatch, tells: bool) -> None:
    """A list in the place of an equal one may change in itself, of which no dict tells."""
    if not tells:
        for version in ("version_of_dicts", "version_of_attributes"):
            monkeypatch.setattr("sfast_core.capture.guards.guard." + version, lambda: None)
    net = nn.Sequential(Net(), Net())
    guard = guard_of(net, torch.ones(1, 4))
    net[1].scales = {"a": [1.0]}
    assert guard.changed(net) is None
    assert guard.changed(net) is None
    net[1].scales["a"][0] = 3.0
    assert guard.changed(net) is not None
    assert guard.changed(net) is not None
    net[1].scales["a"][0] = 1.0
    assert guard.changed(net) is None


def test_a_guard_that_leaves_something_out_lets_another_look() -> None:
    net = nn.Sequential(Net(), Net())
    guard = guard_of(net, torch.ones(1, 4))
    assert guard.changed(net) is None
    net[0].scale = 3.0
    steady = guard.steady(net)
    assert isinstance(steady, Guard) and steady.changed(net) is None
    assert guard.changed(net) == "0.scale changed"
    net[0].scale = 4.0
    assert steady.changed(net) is None and guard.changed(net) == "0.scale changed"


def test_nothing_is_asked_of_what_is_not_there() -> None:
    watched = Untouched([], untouched.version_of_dicts())
    assert watched.written() != []
    watched.settle()
    assert watched.written() == []
