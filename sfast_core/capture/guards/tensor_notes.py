"""What a guard keeps of tensors instead of them: a model that the host takes off the GPU is gone from there."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .attributes import NOTED
from .kinds import Kind, TensorNote
from .leads import Placed
from .notes import MISSING, Held
from .read_set import ReadSet


class TensorNotes:
    """Those of one guard.

    Args:
        fixed: the ids of tensors that a trace reads where they are: they are kept.
        marks: what was read of what others had put on tensors, by the ids of these.
        exact: the ids of tensors that were asked for by identity.
        placed: what is found by places that a signature has.
        bound: the weights that the trace reads, see :class:`.rests_on.RestsOn`: where else one was found, another is
            not as good.

    Attributes:
        told_apart: of tensors that code can tell from an argument, by ids, which are others' once they are gone, tells
            whether they are. A weak reference to one would keep ``torch.utils.swap_tensors`` from it.
    """

    def __init__(
        self,
        fixed: Collection[int],
        marks: Mapping[int, dict[str, Any]],
        exact: Collection[int],
        placed: Placed,
        bound: Mapping[tuple[int, str], dict[str, Any]],
    ) -> None:
        self._fixed, self._marks, self._exact, self._placed = fixed, marks, exact, placed
        self._weights = {id(table.get(name)): (table, name) for (_, name), table in bound.items()}
        self.told_apart: dict[int, Callable[[], bool]] = {}

    def let_go(self, reads: ReadSet) -> None:
        """Nothing that a call has read holds its tensors any more, but for those that a trace reads where they are."""
        reads.carriers.let_go()
        for place in reads.places.values():
            place.then = self.noted(place.then)
        for held in reads.held.values():
            if held.kind is Kind.MAPPING:
                self._noted_items(held, held.before[0])
                held.before = held.before[0], self._noted_items(held, held.before[1])
            elif held.kind is Kind.SET:
                self._noted_items(held, held.before)
            elif held.kind is Kind.SEQUENCE:
                held.before = self._noted_items(held, held.before)
        for asked in reads.asked.values():
            asked.then = self.noted(asked.then)
        for seen in reads.seen.values():
            seen.before.clear()  # its weak reference's callback has it too
            seen.parts = []
            for name, value in seen.found.items():
                if isinstance(value, NOTED) or id(value) in self._placed.through:
                    seen.found[name] = self.noted(value)
        for function in reads.functions.values():
            function.cells = [(cell, self.noted(content)) for cell, content in function.cells]
        for spaces in reads.classes.values():
            spaces[:] = map(self.noted, spaces)

    def noted(self, value: Any) -> Any:
        """What is to be kept of a value."""
        if (note := self._placed.note(value, self.noted)) is not MISSING:
            return note
        if not isinstance(value, torch.Tensor) or id(value) in self._fixed:
            return value
        if exact := id(value) in self._exact:
            self.told_apart[id(value)] = _gone(value)
        return TensorNote(value, self._marks.get(id(value)), exact, self._weights.get(id(value)))

    def _noted_items(self, held: Held, items: Iterable[Any]) -> list[Any]:
        if held.read:  # ``any(x is each for each in self.known)``
            self.told_apart.update(
                (id(item), _gone(item))
                for item in items
                if isinstance(item, torch.Tensor) and id(item) not in self._placed.tensors
            )
        return list(map(self.noted, items))


def _gone(tensor: torch.Tensor) -> Callable[[], bool]:
    """Tells whether a tensor has gone, or at least its memory."""
    try:
        return StorageWeakRef(tensor.untyped_storage()).expired
    except (NotImplementedError, RuntimeError):  # it has no memory that is its own: a sparse one, say
        there = weakref.ref(tensor)
        return lambda: there() is None
