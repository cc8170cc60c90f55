"""Which instructions read a weight, directly or in what was made of it in the same memory: a transposed view, a half, a
reshaped one.

Which results lie in their arguments' memory is seen in a run, not looked up: that of any function of any library is
found so.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import Any

import torch

from ..instructions import Function, read_by
from .schedule import Use


class Reads:
    """What each instruction of a function reads of its weights.

    Args:
        function: of which.
        weights: the places of its weights.

    Attributes:
        of: the places that each instruction reads.
        complete: whether a whole run was looked at.
    """

    def __init__(self, function: Function, weights: Collection[int]) -> None:
        self._function = function
        self._weights = frozenset(weights)
        self.complete = False
        self.of = [tuple(dict.fromkeys(read_by(instruction))) for instruction in function.instructions]
        self._within: dict[int, set[int]] = {}  # by the place of a result: the arguments in whose memory it lies

    def look(self, index: int, values: Sequence[Any]) -> None:
        """Instruction ``index`` has run, and nothing has been dropped: note where its result lies."""
        result = self._function.instructions[index].result
        made = set(_storages(values[result]))
        within = {
            place
            for place in self.of[index]
            if (place in self._weights or place in self._within) and not made.isdisjoint(_storages(values[place]))
        }
        if within:
            self._within.setdefault(result, set()).update(within)

    def weights_at(self, index: int) -> Iterator[int]:
        """The places of the weights that an instruction reads itself."""
        return (place for place in self.of[index] if place in self._weights)

    def uses(self, slots: dict[int, tuple[int, bool]]) -> list[Use]:
        """For each weight of ``slots``, by its place, what it is read for.

        Args:
            slots: the bytes of its slot, and whether what is read lies in there; or else is made of that before the
                first that reads it.
        """
        end = len(self.of)
        pairs: dict[int, list[list[int]]] = {place: [] for place in slots}
        owners: dict[int, list[list[int]]] = {}
        for index, places in enumerate(self.of):
            result = self._function.instructions[index].result
            for place in places:
                now: list[list[int]] = []
                if place in pairs:
                    now = [[index, index]]
                    pairs[place] += now
                for pair in owners.get(place, ()):
                    pair[1] = index
                now = now + owners.get(place, [])
                if place in self._within.get(result, ()):
                    owners.setdefault(result, []).extend(now)
        for place in self._function.outputs:
            if place in pairs:
                pairs[place].append([end, end])
            for pair in owners.get(place, ()):
                pair[1] = end
        uses = []
        for place, (size, in_place) in slots.items():
            if reads := pairs[place]:
                reads = reads if in_place else [[reads[0][0], reads[0][0]]]
                uses.append(Use(place, size, tuple((first, last) for first, last in reads)))
        return uses


def _storages(value: Any) -> Iterator[int]:
    if isinstance(value, torch.Tensor):
        if address := value.untyped_storage().data_ptr():
            yield address
    elif isinstance(value, (tuple, list)):
        for item in value:
            yield from _storages(item)
