"""Was anything written to some of many dicts? Python numbers what is written to each, and PyTorch tells the number.

That is one line of memory of a dict where comparing what is in it takes six, and behind a long replay none is in a
cache.
"""

from __future__ import annotations

import functools
import itertools
import operator
from collections.abc import Callable, Iterable
from typing import Any

import torch

Table = dict[Any, Any]
#: Tells a number of a dict that grows with each write to it.
Version = Callable[[Table], int]
_OFTEN = 100  # times; Python has other code for a line by then


class Untouched:
    """Dicts, and whether they are as they were when somebody looked at them.

    Args:
        tables: the dicts.
        version: None where nothing tells: then they are to be looked at each time.
    """

    def __init__(self, tables: Iterable[Table], version: Version | None) -> None:
        self._version = version
        self._tables: list[Table] = []
        if version is not None:  # by where they lie: memory is fetched in that order at half the time
            lying = {id(table): table for table in tables}
            self._tables = [lying[place] for place in sorted(lying)]
        self._filled: list[Table] = []
        self._empty: list[Table] = []
        self._numbers: list[int] = []  # of those that are filled
        self._sum = 0
        self._settled = False

    def written(self) -> list[Table] | None:
        """Those that may have been written to since :meth:`settle`, which are to be looked at; None for all."""
        if self._version is None:
            return None
        if not self._settled:
            self._count()
            return None
        if not any(self._empty) and sum(map(self._version, self._filled)) == self._sum:
            return []
        filled, numbers, empty = self._filled, self._numbers, self._empty
        self._settled = False
        # asked before they are looked at: what is written meanwhile shows the next time
        if any(empty) or not all(filled):
            self._count()
            now = list(map(self._version, filled))
        else:
            now = self._numbers = list(map(self._version, filled))
            self._sum = sum(now)
        return [*itertools.compress(filled, map(operator.ne, now, numbers)), *filter(None, empty)]

    def settle(self) -> None:
        """All that were to be looked at have in them the very objects that they are to have."""
        self._settled = True

    def _count(self) -> None:
        assert self._version is not None
        numbers, filled = list(map(self._version, self._tables)), list(map(bool, self._tables))
        self._filled = list(itertools.compress(self._tables, filled))
        self._numbers = list(itertools.compress(numbers, filled))
        self._sum = sum(self._numbers)
        # of which that is all there is to ask; and since Python 3.12 one that another is copied into keeps its number
        self._empty = list(itertools.compress(self._tables, map(operator.not_, filled)))


@functools.cache
def version_of_dicts() -> Version | None:
    """Of dicts that are no object's ``__dict__``."""
    guards = getattr(getattr(torch._C, "_dynamo", None), "guards", None)
    version: Version | None = getattr(guards, "dict_version", None)
    table = {"a": 0}
    writes = (lambda: table.update(a=1), lambda: table.update(b=1), lambda: table.pop("a"), lambda: table.clear())
    return version if version is not None and _all_show(version, table, writes) else None


@functools.cache
def version_of_attributes() -> Version | None:
    """Of objects' own, too: of these Python 3.13.0 tells PyTorch nothing."""
    for _ in range(_OFTEN):
        _set(_Attributes())
    value, version = _Attributes(), version_of_dicts()
    writes = (lambda: _set(value), lambda: setattr(value, "b", 1), lambda: delattr(value, "b"))
    return version if version is not None and _all_show(version, vars(value), writes) else None


class _Attributes:
    def __init__(self) -> None:
        self.a = 0


def _set(value: _Attributes) -> None:
    value.a = 1


def _all_show(version: Version, table: Table, writes: Iterable[Callable[[], Any]]) -> bool:
    for write in writes:
        before = version(table)
        write()
        if version(table) <= before:
            return False
    return True
