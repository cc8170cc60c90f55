"""Did what a function closes over change? A node that puts a function into a layer's place may count steps there, or keep a result."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterable, Iterator
from types import CellType, FunctionType, MethodType
from typing import Any

from .called import FUNCTIONS, is_given
from .equality import CONTAINERS, plain, unchanged

_EMPTY = object()


class ClosureGuard:
    """What functions that modules have of their own close over, and the functions in there do, at the time of a trace.

    Simple values and containers of simple values are compared by value, all else by identity; what objects keep is :mod:`.objects`' to watch.

    Args:
        functions: each with its place.
    """

    def __init__(self, functions: Iterable[tuple[str, Any]]) -> None:
        self._cells: list[tuple[str, CellType]] = []
        self._seen: set[int] = set()
        for path, function in functions:
            self._add(path, function)
        self._then = [_copy(_content(cell)) for _, cell in self._cells]

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        for (path, cell), then in zip(self._cells, self._then, strict=True):
            now = _content(cell)
            if now is not then and not (type(now) is type(then) and _by_value(then) and unchanged(now, then)):
                return f"{path} changed"
        return None

    def _add(self, path: str, value: Any) -> None:
        for function in _functions(value):
            if id(function) in self._seen or is_given(function.__module__):
                continue
            self._seen.add(id(function))
            for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
                self._cells.append((f"{path}: {name}", cell))
                if isinstance(content := _content(cell), FUNCTIONS):
                    self._add(path, content)


def _functions(value: Any) -> Iterator[FunctionType]:
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, MethodType):
        value = value.__func__
    if isinstance(value, FunctionType):
        yield value


def _content(cell: CellType) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return _EMPTY


def _by_value(value: Any) -> bool:
    return isinstance(value, (bool, int, float, str, tuple)) or (isinstance(value, CONTAINERS) and plain(value))


def _copy(value: Any) -> Any:
    return copy.deepcopy(value) if isinstance(value, CONTAINERS) and plain(value) else value
