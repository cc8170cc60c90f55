"""Has anything been given an attribute that is read of it, by whatever name it is asked for?"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from ...weights.part import STAMP
from .carriers import BY_ANY_NAME, Carried
from .kinds import Kind
from .notes import Table
from .origin import Origin
from .read_set import ReadSet
from .unmarked import put_on_tensors


class Names(NamedTuple):
    """The attributes that something had; ``read``: names that are read of whatever, None for any."""

    table: Table
    before: frozenset[str]
    read: frozenset[str] | None
    origin: Origin | None


class Sized:
    """Tables of attributes, asked at once whether all have as many as they had."""

    def __init__(self, names: list[Names]) -> None:
        self.names = names
        self.tables: list[Table] = [each.table for each in names]
        self._sizes = list(map(len, self.tables))

    def changed(self) -> str | None:
        """Which has got one that is read, in words, or None."""
        if list(map(len, self.tables)) == self._sizes:
            return None
        for table, before, read, origin in self.names:
            new: Any = table.keys() - before
            if new and (read is None or not new.isdisjoint(read)):
                return f"{origin} has other attributes"
        return None


def sized_of(
    reads: ReadSet, bound: Collection[tuple[int, str]], carried: list[tuple[Carried, frozenset[str]]]
) -> Sized:
    """Of the objects that a call read and of what it came by besides.

    Args:
        reads: the call's, which is over.
        bound: weights, which the host puts on a layer and takes away again, wherever its attributes are gone through:
            the ids of their tables, and their names.
        carried: with the names that each had.
    """
    root, loose, watched_elsewhere = reads.root(), frozenset(reads.loose), dict[int, set[str]]()
    for table, name in bound:
        watched_elsewhere.setdefault(table, set()).add(name)
    objects = [
        Names(
            seen.table,
            frozenset(seen.table) | watched_elsewhere.get(id(seen.table), set()),
            None if seen.every else loose,
            seen.origin,
        )
        for seen in reads.seen.values()
        if (seen.kind in (Kind.OBJECT, Kind.MODULE) or seen.every)
        and seen.table is not None
        and not seen.live
        and seen.get() is not root
    ]
    of_tensors = put_on_tensors(loose)
    others = [
        Names(each.table, names | {STAMP}, None if reads.anything and each.whole else read, each.origin)
        for each, names in carried
        for read in (loose | {BY_ANY_NAME} if each.tensor is None else of_tensors,)
        if reads.anything or read
    ]
    files = [Names(*each[:2], None, each[2]) for each in reads.whole_files.values()]
    return Sized(objects + others + files)
