"""Are the very same objects still where they were? Asked of thousands of places at every call, so there is no loop of
Python's over them.
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

from .notes import MISSING, Place, Row

Same = Callable[[Any, Any], bool]


class Places:
    """Names in tables, and what was there.

    Tables of which the same names are read are asked together, each for all of them at once: 12 ns a place in the place
    of 60.

    Args:
        rows: what is watched.
        same: whether an object is as good as the one that was there.
    """

    def __init__(self, rows: Sequence[Row], same: Same) -> None:
        self._same = same
        self._steady = list(rows)
        self._by_table: dict[int, list[Row]] = {}  # made when one is asked for
        # where another object is found that is as good: looked at one by one from then on
        self._moving: list[Place] = []
        self._arrange()

    def __len__(self) -> int:
        return sum(len(row.names) + len(row.absent) for row in self._steady) + len(self._moving)

    def all(self) -> Iterator[Place]:
        """All places, one by one."""
        return itertools.chain(self._moving, itertools.chain.from_iterable(map(_places_of, self._steady)))

    def changed(
        self, left_out: Collection[tuple[int, Any]] = (), tables: Collection[dict[Any, Any]] | None = None
    ) -> Place | None:
        """The first place where something else is now, or None.

        Args:
            left_out: tables' ids and names that aren't looked at.
            tables: all that were written to since nothing had changed; None where that isn't known.
        """
        if tables is None:
            moved = [] if self._all_the_same() else self._moved_in(self._steady)
        else:
            moved = self._moved_in([row for table in tables for row in self._rows_of(table)])
        if moved:
            self._moving += moved  # first: whoever interrupts this must leave none unwatched
            self._take_out(moved)
            self._arrange()
        for place in self._moving:
            now = place.table.get(place.name, MISSING)
            if (
                now is not place.then
                and not self._same(now, place.then)
                and (id(place.table), place.name) not in left_out
            ):
                return place
        return None

    def _moved_in(self, rows: Iterable[Row]) -> list[Place]:
        return [
            place for row in rows for place in _places_of(row) if place.table.get(place.name, MISSING) is not place.then
        ]

    def _rows_of(self, table: dict[Any, Any]) -> list[Row]:
        if not self._by_table:
            by_table: dict[int, list[Row]] = {}
            for row in self._steady:
                by_table.setdefault(id(row.table), []).append(row)
            self._by_table = by_table
        return self._by_table.get(id(table), [])

    def _take_out(self, moved: list[Place]) -> None:
        gone = {(id(place.table), place.name) for place in moved}
        for row in self._steady:
            kept = [index for index, name in enumerate(row.names) if (id(row.table), name) not in gone]
            if len(kept) < len(row.names):
                row.names, row.then = [row.names[index] for index in kept], [row.then[index] for index in kept]
            row.absent = [name for name in row.absent if (id(row.table), name) not in gone]

    def _arrange(self) -> None:
        absent: dict[Any, list[Any]] = {}  # by name: the tables
        groups: dict[tuple[Any, ...], tuple[list[Any], list[Any]]] = {}  # by names: the tables, and what was in each
        for row in self._steady:
            for name in row.absent:
                absent.setdefault(name, []).append(row.table)
            if row.names:
                tables, values = groups.setdefault(tuple(row.names), ([], []))
                tables.append(row.table)
                values += row.then
        arranged = [(operator.itemgetter(*names), len(names), tables) for names, (tables, _) in groups.items()]
        then = [then for _, values in groups.values() for then in values]
        self._absent, self._groups, self._then = list(absent.items()), arranged, then  # at once, or not at all

    def _all_the_same(self) -> bool:
        try:
            return all(map(operator.is_, self._now(), self._then)) and not any(
                any(map(dict.__contains__, tables, itertools.repeat(name))) for name, tables in self._absent
            )
        except KeyError:  # something was taken away
            return False

    def _now(self) -> Iterator[Any]:
        found = (
            map(get, tables) if count == 1 else itertools.chain.from_iterable(map(get, tables))
            for get, count, tables in self._groups
        )
        return itertools.chain.from_iterable(found)


def _places_of(row: Row) -> Iterator[Place]:
    return (Place(row.table, name, then, row.origin) for name, then in row.items())


def in_rows(places: Iterable[Place]) -> list[Row]:
    """Places of one table in one row."""
    rows: dict[int, Row] = {}
    for place in places:
        row = rows.setdefault(id(place.table), Row(place.table, place.origin))
        if place.then is MISSING:
            row.absent.append(place.name)
        else:
            row.names.append(place.name)
            row.then.append(place.then)
    return list(rows.values())
