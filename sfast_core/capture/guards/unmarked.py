"""What others put on weights that code goes through, in whose places others come."""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Collection, Iterable
from typing import Any

import torch

from ...weights.part import STAMP
from .notes import Table


class Unmarked:
    """Whether something is put on weights by the names that are read of whatever.

    Args:
        weights: tables of weights that are gone through, and of other parts of modules.
        names: of attributes that are read of whatever and that no tensor has by itself; None where any may be.
    """

    def __init__(self, weights: list[Table], names: frozenset[str] | None) -> None:
        self._names = names
        watched = names is None or names
        self._weights = [table for table in weights if table and _has_tensors(table)] if watched else []
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

    def _are_read(self, names: Iterable[str]) -> bool:
        return any(name != STAMP for name in names) if self._names is None else not self._names.isdisjoint(names)


def put_on_tensors(names: Collection[str]) -> frozenset[str]:
    """Those of these names that no tensor has by itself."""
    return frozenset(name for name in names if not hasattr(torch.Tensor, name))


def _has_tensors(table: Table) -> bool:
    return any(isinstance(value, torch.Tensor) for value in table.values())


_NONE: frozenset[str] = frozenset()
_alive = weakref.ref.__call__
_NOTHING = weakref.ref(type("_Gone", (), {})())  #: leads to None, as where there is no weight
