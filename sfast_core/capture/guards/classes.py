"""What classes have, as it was: names that are read, and all that Python looks up in a class by itself (``__bool__``,
``__eq__``, ``__format__``).
"""

from __future__ import annotations

import itertools
import operator
from collections.abc import Collection, Iterator
from functools import partial
from types import FunctionType, MappingProxyType
from typing import Any

from .by_others import Counts, Look, differs
from .equality import Equality
from .given import itself
from .notes import MISSING
from .read_set import ReadSet
from .seen_classes import is_looked_up

Names = MappingProxyType[str, Any]


class Classes:
    """Classes of which a call read something.

    What they have is compared in one row, each class's own names once, though many have it among their bases. What they
    haven't shows in their names.

    Args:
        reads: what the call read; it is over.
        without: classes' ids and names that aren't watched.
        same: how values are compared.
    """

    def __init__(self, reads: ReadSet, without: Collection[tuple[int, Any]], same: Equality) -> None:
        self._same = same.same
        self._read_names = reads.classes
        keys = [(cls, name) for cls, name in reads.classes if (id(cls), name) not in without]
        self._orders = [(cls, cls.__mro__) for cls in dict.fromkeys(cls for cls, _ in keys)]
        found: dict[tuple[type, str], tuple[type, Any]] = {}
        watched: dict[type, set[str]] = {owner: set() for owner in reads.spaces}
        for cls, name in keys:
            for owner, then in zip(cls.__mro__[:-1], reads.classes[cls, name], strict=True):
                watched.setdefault(owner, set()).add(name)
                found[owner, name] = cls, then
        for owner, space in reads.spaces.items():
            for name, then in space.items():
                # a function shows when it runs
                if is_looked_up(name) and type(then) is not FunctionType and (id(owner), name) not in without:
                    found.setdefault((owner, name), (owner, then))
        there = [(owner, name, cls, then) for (owner, name), (cls, then) in found.items() if then is not MISSING]
        self._places = [f"{cls.__qualname__}.{name}" for _, name, cls, _ in there]  # a class may go
        self._spaces, self._names = [vars(owner) for owner, *_ in there], [name for _, name, *_ in there]
        self._then = [then for *_, then in there]
        whole = reads.gone_through.union(seen.cls for seen in reads.seen.values() if seen.every)
        every = {owner for cls in whole for owner in cls.__mro__}
        of_users = {owner for cls in reads.spaces for owner in cls.__mro__[:-1]}
        loose = frozenset(reads.loose)
        self._tables: list[Names] = []
        # of each: its names, those that are read, of it and of whatever, whether any may be, or what Python looks up;
        # and what it is called
        self._read: list[Any] = []
        for owner, names in watched.items():
            self._tables.append(vars(owner))
            self._read.append(
                (
                    frozenset(vars(owner)),
                    names,
                    loose if owner in reads.spaces else (),
                    owner in every,
                    owner in of_users,
                    owner.__qualname__,
                )
            )
        self._all_names = list(itertools.chain.from_iterable(self._tables))

    def looks(self, counts: Counts) -> Iterator[Look]:
        """The names that are read of classes and that count, each as a place of its own."""
        for (cls, name), found in self._read_names.items():
            if counts(key := (id(cls), name), name):
                for owner, then in zip(cls.__mro__[:-1], found, strict=True):
                    now = partial(_in, vars(owner), name)
                    yield Look(key, f"{cls.__qualname__}.{name}", partial(differs, self._same, now, then))

    def changed(self) -> str | None:
        """What is different now, in words, or None."""
        for cls, order in self._orders:
            if cls.__mro__ is not order and cls.__mro__ != order:
                return f"the bases of {cls.__qualname__} changed"
        now = list(map(MappingProxyType.get, self._spaces, self._names, itertools.repeat(MISSING)))
        for index in itertools.compress(itertools.count(), map(operator.is_not, now, self._then)):
            if not self._same(now[index], self._then[index]):
                return f"{self._places[index]} changed"
        if list(itertools.chain.from_iterable(self._tables)) == self._all_names:
            return None
        return self._with_others()

    def _with_others(self) -> str | None:
        for table, (before, names, loose, every, by_python, owner) in zip(self._tables, self._read, strict=True):
            gone = [name for name in before - table.keys() if by_python and is_looked_up(name)]
            new = [
                name
                for name in table.keys() - before
                if name in names or name in loose or (every if _is_own(name) else by_python and is_looked_up(name))
            ]
            if gone or new:
                return f"{owner}.{(gone or new)[0]} changed"
        return None


def _is_own(name: str) -> bool:
    """Whether only users give attributes this name."""
    return not name.startswith("__")


def _in(space: Names, name: str) -> Any:
    return itself(space.get(name, MISSING))
