"""What others put on functions, files, numbers and the like that code comes by where it doesn't know what it has: names
are all that is known of what it reads of them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple, Protocol

import torch

from .given import is_given
from .notes import MISSING, Place, Table
from .origin import Origin

#: Of whose classes no attribute is one that somebody put there, or that says more than its value: nearly all values are
#: of these.
WITHOUT_MORE = frozenset(
    {
        torch.Tensor,
        torch.nn.Parameter,
        dict,
        list,
        tuple,
        set,
        str,
        int,
        float,
        bool,
        type(None),
        FunctionType,
        BuiltinFunctionType,
        ModuleType,
        type,
    }
)
_FOR_USERS = (functools.partial, functools.partialmethod, type(functools.lru_cache(lambda: None)))
_HOLDERS = 2  # of a table that its owner has let go: the entry, and who counts them


class Carried(NamedTuple):
    """One table of attributes, and what was in it when its owner was first come by. The owner isn't held."""

    table: Table
    before: Table
    origin: Origin | None


class Reads(Protocol):
    """What is read, as far as it is needed here."""

    places: dict[tuple[int, Any], Place]


class Carriers:
    """The tables of all that a call comes by and that is no object of a class that Python code defines."""

    def __init__(self) -> None:
        self._of: dict[int, Carried] = {}

    def __iter__(self) -> Iterator[Carried]:
        return iter(self._of.values())

    def add(self, value: Any, origin: Origin | None) -> None:
        """Code comes by ``value``, whose class lets it have attributes."""
        table = getattr(value, "__dict__", None) if _may_carry(value) else None
        if type(table) is dict and id(table) not in self._of:
            self._of[id(table)] = Carried(table, dict(table), origin)

    def drop_gone(self, noted: Mapping[int, int]) -> bool:
        """The call is over: forget what was made in it and let go. Whether there was any.

        ``noted``: how many notes have each table besides, by its id.
        """
        gone = [key for key, each in self._of.items() if sys.getrefcount(each.table) <= _HOLDERS + noted[key]]
        for key in gone:
            del self._of[key]
        return bool(gone)

    def note(self, reads: Reads, loose: Collection[str] | None) -> Iterable[Place]:
        """Have that watched of it which is read of whatever, or where that is None all. Returns what hadn't been."""
        new = []
        for table, before, origin in self._of.values():
            for name in before.keys() | table.keys() if before or table else ():
                if (loose is None or name in loose) and (id(table), name) not in reads.places:
                    reads.places[id(table), name] = Place(table, name, before.get(name, MISSING), origin)
                    new.append(reads.places[id(table), name])
        return new

    def stored(self, names: Collection[str]) -> Iterator[tuple[Carried, str]]:
        """What the call has set by names that it sets of whatever."""
        for each in self._of.values():
            for name in each.before.keys() | each.table.keys() if each.before or each.table else ():
                if name in names and each.table.get(name, MISSING) is not each.before.get(name, MISSING):
                    yield each, name

    def let_go(self) -> None:
        """What is in them is others' again."""
        self._of.clear()


def _may_carry(value: Any) -> bool:
    """Whether what is put on a value may be a user's: what Python, PyTorch and NumPy put on their own is theirs."""
    cls = type(value)
    if issubclass(cls, (type, torch.Tensor)):
        return False
    if cls in (FunctionType, ModuleType):
        return not is_given(value.__name__ if cls is ModuleType else value.__module__)
    return cls in _FOR_USERS or not is_given(cls.__module__)
