"""What code stores, puts into something and imports, by its bytecode."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tests.capture.guards.test_bytecode import alias, found, looped, spread, where

STORED = 0


def stores(self: Any, x: Any) -> Any:
    global STORED
    STORED = x
    self.last, self.inner.last = x, x
    self.count += 1
    del self.gone, self.inner.gone
    setattr(self, "named", x)  # noqa: B010
    delattr(self, "unnamed")
    return x


def test_what_is_stored() -> None:
    reads = found(stores)
    assert reads.stored == {"last", "count", "gone", "named", "unnamed"} and reads.stored_globals == {"STORED"}
    assert {"self.last", "self.inner.last", "self.gone", "self.inner.gone", "self.named"} <= where(
        reads.variables, "stored"
    )
    assert {"self.count"} <= where(reads.variables, "content"), "what is counted up is read"
    assert not {"self.last", "self.inner.last", "self.gone", "self.named"} & where(reads.variables, "content"), (
        "the others aren't"
    )


def writes(self: Any, x: Any) -> Any:
    self.maps.append(x)
    self.table["k"] = x
    del self.table["other"]
    self.inner.seen.add(x)
    self.by_name["maps"].extend(x)
    self.rows.setdefault("k", []).append(x)
    return x


def test_what_something_is_put_into() -> None:
    reads = found(writes)
    assert {"self.maps", "self.table", "self.inner.seen", "self.by_name['maps']"} <= where(reads.variables, "written")
    assert not {"self.maps", "self.table", "self.inner.seen", "self.by_name['maps']"} & where(
        reads.variables, "content"
    ), "which isn't read"
    assert "self.rows.setdefault" in where(reads.variables, "content")


class Made:
    def __init__(self, box: Any, parent: Any) -> None:
        self.box = box
        parent.child = self

    def hold(self, box: Any) -> None:
        self.box = box
        self.by_name["box"] = box


def test_at_which_names_there_may_be_something_else_later() -> None:
    assert found(Made.__init__).rebound == {"child"}, "an object is made once"
    assert found(Made.hold).rebound == {"box"} and found(stores).rebound >= {"last", "STORED"}
    assert found(writes).puts and not found(Made.hold).puts


@pytest.mark.parametrize("expression", ["-x", "x * 2", "x > 0", "x[1:]", "not x", "x @ x"])
def test_what_is_put_somewhere_may_be_computed(expression: str) -> None:
    scope: dict[str, Any] = {}
    exec(f"def puts(self, x):\n    self.maps.append({expression})", scope)
    reads = found(scope["puts"])
    assert "self.maps" in where(reads.variables, "written") and "self.maps" not in where(reads.variables, "content")


def test_a_mutator_that_is_kept_is_an_attribute_as_others() -> None:
    def keeps(self: Any, xs: Any) -> Any:
        append = self.maps.append
        for x in xs:
            append(x)

    assert "self.maps.append" in where(found(keeps).variables, "content")


def imports(self: Any) -> Any:
    import math
    import os.path
    import os.path as path
    from math import pi as half
    from math import tau

    return math.e, os.sep, path.sep, tau, half


def test_imports_within_functions() -> None:
    found_imports = found(imports).imports
    assert {("math", 0, False), ("os.path", 0, False), ("math", 0, True)} <= found_imports.keys()
    assert {"math.tau", "math.pi"} <= where({"math": found_imports["math", 0, True]}, "loaded")
    assert "math.e" in where({"math": found_imports["math", 0, False]}, "content")


FUNCTIONS: list[Callable[..., Any]] = [alias, looped, stores, writes, imports, spread]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_the_same_is_found_each_time(function: Any) -> None:
    first, second = found(function), found(function)
    for what in ("loaded", "content", "written", "stored", "every"):
        assert where(first.variables, what) == where(second.variables, what)
    assert first.loose == second.loose and first.stored == second.stored
