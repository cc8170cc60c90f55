"""Did what a function closes over change? A node that puts a function into a layer's place may count steps there, or keep a result."""

from __future__ import annotations

from collections.abc import Iterable
from types import CellType
from typing import Any

from .called import FUNCTIONS, content_of, functions_in, is_given
from .equality import CONTAINERS, SIMPLE, equal

_DEEPEST, _LARGEST = 3, 100  #: how deep containers are looked into, and of how many things; what is beyond counts as one thing


class ClosureGuard:
    """What functions that modules have of their own close over, and the functions in there do, at the time of a trace.

    Simple values are compared by value, containers by what is in them, all else by identity; what objects keep is :mod:`.objects`' to watch.

    Args:
        functions: each with its place.
    """

    def __init__(self, functions: Iterable[tuple[str, Any]]) -> None:
        self._cells: list[tuple[str, CellType]] = []
        self._seen: set[int] = set()
        for path, function in functions:
            self._add(path, function)
        self._then = [_copy(content_of(cell)) for _, cell in self._cells]

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        for (path, cell), then in zip(self._cells, self._then, strict=True):
            if not _unchanged(content_of(cell), then):
                return f"{path} changed"
        return None

    def _add(self, path: str, value: Any) -> None:
        for function in functions_in(value):
            if id(function) in self._seen or is_given(function.__module__):
                continue
            self._seen.add(id(function))
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                self._cells.append((f"{path}: {name}", cell))
                if isinstance(content := content_of(cell), FUNCTIONS):
                    self._add(path, content)


def _copy(value: Any, depth: int = 0) -> Any:
    """``value`` with the containers in it copied, as far as they are looked into."""
    if type(value) not in CONTAINERS or depth == _DEEPEST or len(value) > _LARGEST:
        return value
    if isinstance(value, dict):
        return {key: _copy(item, depth + 1) for key, item in value.items()}
    return type(value)(_copy(item, depth + 1) for item in value)


def _unchanged(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) is not type(then):
        return False
    if isinstance(then, dict):
        return now.keys() == then.keys() and all(_unchanged(now[key], item) for key, item in then.items())
    if isinstance(then, list):
        return len(now) == len(then) and all(map(_unchanged, now, then))
    return isinstance(then, (*SIMPLE, set)) and equal(now, then)
