"""Are the very same objects still where they were? Asked of thousands of places at every call, so there is no loop of Python's."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Places:
    """Names in tables, and what was there when they were noted.

    Args:
        places: each a table and a name in it, which may be missing.
        get: the tables' own: ``dict.get``, or that of another mapping.

    Attributes:
        then: what was there, in the places' order; None where there was nothing.
    """

    def __init__(self, places: Iterable[tuple[Mapping[str, Any], str]], get: Callable[..., Any] = dict.get) -> None:
        found = list(places)
        self.tables, self.names = [table for table, _ in found], [name for _, name in found]
        self._get = get
        self.then = self.now()

    def now(self) -> list[Any]:
        """What is there now, in the same order."""
        return list(map(self._get, self.tables, self.names))

    def same(self) -> bool:
        """Whether each is the very object that it was."""
        return all(map(operator.is_, self.now(), self.then))
