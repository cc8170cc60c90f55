"""What others put on functions, files, numbers, tensors and the like that code comes by where it doesn't know what it
has: names are all that is known of what it reads of them, or sets.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Iterable, Iterator, Mapping
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

import torch

from ...weights.part import STAMP, is_plain
from .given import is_given
from .marks import Reads, mark
from .notes import MISSING, Place, Table
from .origin import Origin

#: Of whose classes no attribute is one that somebody put there, or that says more than its value: nearly all values are
#: of these.
_PLAIN = (dict, list, tuple, set, str, int, float, bool, type(None), type)
WITHOUT_MORE = frozenset({*_PLAIN, torch.Tensor, torch.nn.Parameter, FunctionType, BuiltinFunctionType, ModuleType})
_PLAIN_VALUES = (str, int, float, bool, type(None))
BY_ANY_NAME = "__getattr__"  #: of a file: makes what isn't there when it is asked for
_FOR_USERS = (functools.partial, functools.partialmethod, type(functools.lru_cache(lambda: None)))
_TENSOR = Origin(None, "a tensor")
_HOLDERS = 2  # of a table that its owner has let go: the entry, and who counts them


class Carried(NamedTuple):
    """One table of attributes, and what was in it when its owner was first come by. That isn't held, but for a tensor.

    ``whole``: names that are computed may be any of it. Of a file only the plain values among these count: what it
    keeps for itself is much.
    """

    table: Table
    before: Table
    origin: Origin | None
    whole: bool
    tensor: torch.Tensor | None = None
    of_file: bool = False


class Carriers:
    """The tables of all that a call comes by and that is no object of a class that Python code defines."""

    def __init__(self) -> None:
        self._of: dict[int, Carried] = {}

    def __iter__(self) -> Iterator[Carried]:
        return iter(self._of.values())

    def add(self, value: Any, origin: Origin | None, whole: bool = True) -> None:
        """Code comes by ``value``, whose class lets it have attributes; ``whole``: see :class:`Carried`."""
        table = getattr(value, "__dict__", None) if _may_carry(value) else None
        if type(table) is dict and id(table) not in self._of:
            self._of[id(table)] = Carried(table, dict(table), origin, whole, None, type(value) is ModuleType)

    def add_tensors(self, tensors: Iterable[Any]) -> None:
        """Likewise by these, as far as they are any."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and is_plain(tensor) and id(table := vars(tensor)) not in self._of:
                self._of[id(table)] = Carried(table, dict(table), _TENSOR, True, tensor)

    def drop_gone(self, noted: Mapping[int, int]) -> bool:
        """The call is over: forget what was made in it and let go. Whether there was any.

        ``noted``: how many notes have each table besides, by its id.
        """
        gone = [key for key, each in self._of.items() if sys.getrefcount(each.table) <= _HOLDERS + noted[key]]
        for key in gone:
            del self._of[key]
        return bool(gone)

    def note(self, reads: Reads, loose: Collection[str], anything: bool) -> Iterable[Place]:
        """Have that watched of it which is read of whatever: by these names, or by any. Returns what hadn't been."""
        new = []
        for table, before, origin, whole, tensor, of_file in self._of.values():
            for name in before.keys() | table.keys() if before or table else ():
                read = anything and whole and not name.startswith("__") and name != STAMP
                if read and of_file:
                    read = type(before.get(name, table.get(name))) in _PLAIN_VALUES
                read = read or name in loose or name == BY_ANY_NAME
                if read and (id(table), name) not in reads.places:
                    reads.places[id(table), name] = Place(table, name, before.get(name, MISSING), origin)
                    new.append(reads.places[id(table), name])
                    if tensor is not None:
                        mark(reads, tensor, table).names.add(name)
        return new

    def let_go(self) -> None:
        """Hold none of the tables any more."""
        self._of.clear()


def _may_carry(value: Any) -> bool:
    """Whether what is put on a value may be a user's: what Python, PyTorch and NumPy put on their own is theirs."""
    cls = type(value)
    if issubclass(cls, (type, torch.Tensor)):
        return False
    if cls in (FunctionType, ModuleType):
        return not is_given(value.__name__ if cls is ModuleType else value.__module__)
    return cls in _FOR_USERS or not is_given(cls.__module__)
