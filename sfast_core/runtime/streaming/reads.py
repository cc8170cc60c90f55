"""Finds which instructions read a weight, itself or through a view of it: transposed, a half, reshaped.

Which results share memory with their arguments is observed in a run and not looked up in a list, so it is right for any
function of any library.
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
        function: the instructions.
        weights: the places of the weights.

    Attributes:
        of: the places that each instruction reads.
        complete: whether a whole run has been observed.
    """

    def __init__(self, function: Function, weights: Collection[int]) -> None:
        self._function = function
        self._weights = frozenset(weights)
        self.complete = False
        self.of = [tuple(dict.fromkeys(read_by(instruction))) for instruction in function.instructions]
        self._within: dict[int, set[int]] = {}  # by the place of a result: the arguments in whose memory it lies

    def look(self, index: int, values: Sequence[Any]) -> None:
        """Note whose memory the result of instruction ``index`` shares: when it has run, and values are still there."""
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
        """When each weight of ``slots`` is read.

        Args:
            slots: by the weight's place, the bytes of its slot, and whether the slot itself is what instructions read.
                If not, what they read is made of it before the first of them.
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
