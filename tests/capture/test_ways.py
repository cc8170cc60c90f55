"""Which numbers that code reads are only compared, and with what: told by its bytecode alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import pytest

from sfast_core.capture.ways import Uses, uses_of, values_of

LIMIT = 7.0


class Reads:
    """A tensor that looks who reads its number, and how."""

    def __init__(self) -> None:
        self.uses: Uses | None = None
        self.others: list[tuple[str, float]] | None = None

    def item(self) -> float:
        frame = sys._getframe(1)
        self.uses = uses_of(frame.f_code, frame.f_lasti)
        self.others = None if self.uses is None else values_of(self.uses, frame)
        return 5.0


class Range:
    """As a patch has it."""

    def __init__(self) -> None:
        self.start, self.end, self.table = 9.0, 1.0, [{"start": 8.0}]

    @property
    def computed(self) -> float:
        return 3.0

    def at_once(self, x: Any) -> Any:
        return x.item() > 3

    def in_a_variable(self, x: Any) -> Any:
        value = x.item() if self.table else 0.0
        return any([True for _ in ()]) or (value <= self.table[0]["start"] and value >= self.end)

    def between(self, x: Any) -> Any:
        value = x.item()
        if not self.end <= value <= self.start:
            return "out"
        return "in"

    def as_float(self, x: Any) -> Any:
        value = float(x.item())
        if not self.end <= value <= self.start:
            return "out"
        for _ in range(2):
            if value == LIMIT:
                return "limit"
        return "in"

    def whether_it_is_there(self, x: Any) -> Any:
        value = x.item()
        return value is not None and bool(1 if value else 0)


def closed_over(limit: float) -> Callable[[Any], Any]:
    return lambda x: float(x.item()) <= limit


def computed_with(x: Any) -> Any:
    value = x.item()
    return value * 2 > 3


def handed_on(x: Any) -> Any:
    value = x.item()
    return abs(value) if value > 3 else 0


def seen_by_another(x: Any) -> Any:
    value = x.item()
    return lambda: value > 3


def returned(x: Any) -> Any:
    value = float(x.item())
    return value if value > 3 else 0


def read_where_something_fails(x: Any) -> Any:
    value = x.item()
    try:
        return value > 3
    except TypeError:
        return [value]


def listed(x: Any) -> Any:
    return locals() if x.item() > 3 else 0


def one_of(x: Any) -> Any:
    return x.item() in (1.0, 5.0)


def _look(function: Callable[[Any], Any]) -> Reads:
    reads = Reads()
    function(reads)
    return reads


@pytest.mark.parametrize("name", ["at_once", "in_a_variable", "between", "as_float", "whether_it_is_there"])
def test_which_are_only_compared(name: str) -> None:
    uses = _look(getattr(Range(), name)).uses
    assert uses is not None and uses.as_float == (name == "as_float")


@pytest.mark.parametrize(
    "function",
    [computed_with, handed_on, seen_by_another, returned, read_where_something_fails, listed, one_of],
    ids=lambda function: function.__name__,
)
def test_which_are_used_otherwise(function: Callable[[Any], Any]) -> None:
    assert _look(function).uses is None


def test_what_they_are_compared_with() -> None:
    assert sorted(_look(Range().as_float).others or ()) == [("__eq__", 7.0), ("__ge__", 1.0), ("__le__", 9.0)]
    assert sorted(_look(Range().in_a_variable).others or ()) == [("__ge__", 1.0), ("__le__", 8.0)]
    assert _look(closed_over(2.5)).others == [("__le__", 2.5)]
    assert _look(Range().whether_it_is_there).others == [("__ne__", 0)]


def of_a_property(x: Any, of: Any = Range()) -> Any:  # noqa: B008
    return float(x.item()) > of.computed


def of_a_call(x: Any) -> Any:
    return float(x.item()) > max(3, 4)


def of_what_comes_later(x: Any) -> Any:
    value = float(x.item())
    limit = 3.0
    return value > limit


def of_what_comes_again(x: Any) -> Any:
    limit, found = 3.0, []
    for index in range(2):
        if index == 0:
            value = float(x.item())
        found.append(value > limit)
        limit = 9.0
    return found


def of_what_is_set_between(x: Any, of: Any = Range()) -> Any:  # noqa: B008
    value = float(x.item())
    of.start = 2.0
    return value > of.start


def of_what_a_function_in_it_sets(x: Any) -> Any:
    limit = 3.0

    def later() -> None:
        nonlocal limit
        limit = 9.0

    value = float(x.item())
    later()
    return value > limit


def of_no_number(x: Any, limit: Any = "3") -> Any:
    return float(x.item()) == limit


@pytest.mark.parametrize(
    "function",
    [
        of_a_property,
        of_a_call,
        of_what_comes_later,
        of_what_comes_again,
        of_what_is_set_between,
        of_what_a_function_in_it_sets,
        of_no_number,
    ],
    ids=lambda function: function.__name__,
)
def test_what_can_not_be_said_beforehand(function: Callable[[Any], Any]) -> None:
    reads = _look(function)
    assert reads.uses is not None and reads.others is None


def test_another_function_of_the_name() -> None:
    scope: dict[str, Any] = {"float": lambda value: value * 2}
    exec("def reads(x): return float(x.item()) > 3", scope)
    assert _look(scope["reads"]).others is None
