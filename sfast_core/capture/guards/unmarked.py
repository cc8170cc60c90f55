"""What others put on tensors that code comes by where it goes through many: names are all that is known of what it
reads of them.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch

from ...weights.part import STAMP, is_plain
from .marks import Reads, mark
from .notes import MISSING, Place, Table


class WalkedTensors:
    """Tensors that code comes by, and what had been put on each when it was first come by."""

    def __init__(self) -> None:
        self._of: dict[int, tuple[torch.Tensor, Table]] = {}

    def add(self, tensors: Iterable[Any]) -> None:
        """Code comes by these."""
        for tensor in tensors:
            if isinstance(tensor, torch.Tensor) and id(tensor) not in self._of and is_plain(tensor):
                self._of[id(tensor)] = tensor, dict(vars(tensor))

    def note(self, reads: Reads, loose: Collection[str] | None) -> list[Place]:
        """Have that watched of it which is read of whatever, or where that is None all. Returns what hadn't been."""
        new = []
        for tensor, before in self._of.values():
            table = vars(tensor)
            for name in before.keys() | table.keys() if before or table else ():
                if (name != STAMP if loose is None else name in loose) and (id(table), name) not in reads.places:
                    place = reads.places[id(table), name] = Place(table, name, before.get(name, MISSING), None)
                    mark(reads, tensor, table).names.add(name)
                    new.append(place)
        return new

    def tables(self) -> list[Table]:
        """Where each has what was put on it."""
        return [vars(tensor) for tensor, _ in self._of.values()]

    def let_go(self) -> None:
        """The tensors are others' again."""
        self._of.clear()


class Unmarked:
    """Whether something is put on tensors that had nothing by the names that are read of whatever.

    Args:
        weights: tables of weights that are gone through, and of other parts of modules.
        others: where other tensors that are come by have what was put on them.
        loose: names of attributes that are read of whatever; None where any may be.
    """

    def __init__(self, weights: list[Table], others: list[Table], loose: Collection[str] | None) -> None:
        self._names = None if loose is None else frozenset(name for name in loose if not hasattr(torch.Tensor, name))
        watched = self._names is None or self._names
        self._weights = [table for table in weights if table and _has_tensors(table)] if watched else []
        self._others = others if watched else []
        self._keys = {id(table): frozenset(table) for table in self._others if table}
        self._empty = [table for table in self._others if not table]
        self._filled = [table for table in self._others if table]
        self._sizes = list(map(len, self._filled))
        # what classes of tensors that are made of others put there themselves: a weight that is loaded again has it too
        self._own: dict[type, set[str]] = {}
        for tensor in self._values():
            if hasattr(tensor, "__tensor_flatten__"):
                own = self._own.setdefault(type(tensor), set())
                own.update(tensor.__tensor_flatten__()[0], vars(tensor))
        self._remember()

    def _remember(self) -> None:
        self._refs = [_NOTHING if value is None else weakref.ref(value) for value in self._values()]

    def _values(self) -> Iterable[Any]:
        return itertools.chain.from_iterable(map(dict.values, self._weights))

    def weights_changed(self) -> bool:
        """Whether there is more to read of the weights than there was, where others may have come."""
        now = list(self._values())
        if len(now) != len(self._refs) or not all(map(operator.is_, now, map(_alive, self._refs))):
            known = set(map(id, map(_alive, self._refs)))
            new = [tensor for tensor in now if tensor is not None and id(tensor) not in known]
            if any(self._are_read(vars(tensor).keys() - self._own.get(type(tensor), _NONE)) for tensor in new):
                return True
            self._remember()
        return False

    def others_changed(self) -> bool:
        """Likewise of the other tensors. Asked at each call."""
        if not any(self._empty) and list(map(len, self._filled)) == self._sizes:
            return False
        return any(self._are_read(table.keys() - self._keys.get(id(table), frozenset())) for table in self._others)

    def _are_read(self, names: Iterable[str]) -> bool:
        return any(name != STAMP for name in names) if self._names is None else not self._names.isdisjoint(names)


def _has_tensors(table: Table) -> bool:
    return any(isinstance(value, torch.Tensor) for value in table.values())


_NONE: frozenset[str] = frozenset()
_alive = weakref.ref.__call__
_NOTHING = weakref.ref(type("_Gone", (), {})())  #: leads to None, as where there is no weight
