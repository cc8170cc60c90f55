"""What functions are made of, as it was: their code, their defaults and what they close over."""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator
from functools import partial
from typing import Any

from .by_others import Counts, Look, differs
from .notes import SeenFunction, content_of
from .readers import Key

_CONTENT = operator.attrgetter("cell_contents")


class Functions:
    """Functions that a call came by.

    Args:
        functions: they.
        without: the ids of cells that aren't watched, each with None.
        same: whether a value is as good as the one that was there.

    Attributes:
        codes: what code each had.
    """

    def __init__(
        self,
        functions: Iterable[SeenFunction],
        without: Collection[tuple[int, Any]],
        same: Callable[[Any, Any], bool],
    ) -> None:
        self._same = same
        self._functions = list(functions)
        self.codes = [seen.code for seen in self._functions]
        closed_over = [
            (cell, content, seen)
            for seen in self._functions
            for cell, content in seen.cells
            if (id(cell), None) not in without
        ]
        self._cells = [cell for cell, *_ in closed_over]
        self._contents = [content for _, content, _ in closed_over]
        self._owners = [seen for *_, seen in closed_over]

    def looks(self, counts: Counts) -> Iterator[Look]:
        """The parts of the functions that count, each as a place of its own."""
        for part, before in (("__code__", "code"), ("__defaults__", "defaults"), ("__kwdefaults__", "keywords")):
            for seen in self._functions if counts(None, part) else ():
                is_other = partial(differs, self._same, partial(getattr, seen.function, part), getattr(seen, before))
                yield Look(None, f"the {part} of {seen.function.__qualname__}", is_other)
        for cell, content, seen in zip(self._cells, self._contents, self._owners, strict=True):
            if counts(key := (id(cell), None), _name_of(cell, seen)):
                words = f"what {seen.origin or seen.function.__qualname__} closes over"
                yield Look(key, words, partial(differs, self._same, partial(content_of, cell), content))

    def changed(self, left_out: Collection[Key]) -> tuple[str, Key | None] | None:
        """What is different now, in words, and where that is known which cell it is in; or None.

        ``left_out``: cells that aren't looked at.
        """
        codes = [seen.function.__code__ for seen in self._functions]
        if not all(map(operator.is_, codes, self.codes)):
            index = next(itertools.compress(itertools.count(), map(operator.is_not, codes, self.codes)))
            return f"the code of {self._functions[index].origin} changed", None
        for seen in self._functions:
            function = seen.function
            if function.__defaults__ is not seen.defaults and not self._same(function.__defaults__, seen.defaults):
                return f"the defaults of {function.__qualname__} changed", None
            if (function.__kwdefaults__ or seen.keywords) and not self._same(function.__kwdefaults__, seen.keywords):
                return f"the defaults of {function.__qualname__} changed", None
        if self._close_over_the_very_same():
            return None
        for cell, content, seen in zip(self._cells, self._contents, self._owners, strict=True):
            now = content_of(cell)
            if now is not content and not self._same(now, content) and (id(cell), None) not in left_out:
                return f"what {seen.origin or seen.function.__qualname__} closes over changed", (id(cell), None)
        return None

    def _close_over_the_very_same(self) -> bool:
        try:
            return all(map(operator.is_, map(_CONTENT, self._cells), self._contents))
        except ValueError:  # one is empty
            return False


def _name_of(cell: Any, seen: SeenFunction) -> str | None:
    """The variable that a cell is for a function."""
    cells = seen.function.__closure__ or ()
    return next((name for name, each in zip(seen.code.co_freevars, cells, strict=False) if each is cell), None)
