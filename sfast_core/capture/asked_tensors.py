"""What code asks of tensors besides values steers it, and may be another at a later call: noted, to be asked again."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..reporting.reasons.records import UNLIKE
from ..weights import WeightRef, WeightTable
from ..weights.part import is_plain
from .bookkeeping import MADE
from .calls import Calls
from .told import HIDDEN, LYING, OF_LAYOUT, Telling, Told, tells, told_by


class AskedTensors(Calls):
    """Bookkeeping of what tensors tell.

    Attributes:
        told: by tensors that were there before the call.
        as_they_lie: weights that are asked how they lie in memory: no other layout is as good.
    """

    at_work: list[torch.nn.Module]
    ended_in: Any

    def __init__(self, inputs: list[torch.Tensor], table: WeightTable) -> None:
        super().__init__(inputs, table)
        self.told: list[Telling] = []
        self.as_they_lie: set[WeightRef] = set()
        self._expected: set[tuple[int, str]] = set()  # of inputs: which, and what

    def refuse(self, reason: str, passing: bool = False) -> None:
        """Note why the recording is of no use."""
        raise NotImplementedError

    def _asked(self, name: str, tensor: torch.Tensor) -> None:
        """A tensor is asked for what steers Python code: as long as it was there before the call, it may tell something
        else at another.
        """
        if not isinstance(tensor, torch.Tensor) or not is_plain(tensor):
            return
        inputs = self._inputs.get(self._storage(tensor), ())
        place = next((index for index, each in inputs if each is tensor), None)
        before = not inputs and self._was_there(tensor)
        if name in HIDDEN:
            if inputs or (name == "_version" and before):
                self.refuse(UNLIKE(name=name))
                # live code would be told a copy's, or write to one through NumPy
                self.at_work, self.ended_in = [], None
        elif inputs and name in OF_LAYOUT:  # the signature says it
            return
        elif place is not None:
            self._expect(place, name, tensor)
        elif inputs and name == "storage_offset":  # of a view: it follows from where those begin that it may be one of
            for index, each in inputs:
                self._expect(index, name, each)
        elif before:
            self._tell(name, self._table.find(tensor), tensor)
        elif name in LYING and self._storage(tensor) in self._kept:  # of a view: it follows from how the weight lies
            for ref in list(self._weights):
                weight = ref.tensor()
                if self._storage(weight) == self._storage(tensor):
                    self._tell(name, ref, weight)

    def _was_there(self, tensor: torch.Tensor) -> bool:
        """Whether it was there before the call: not if the graph makes it, or what it lies in, as a new parameter's."""
        node = self._nodes.get(tensor)
        if node is None:
            return not self._lies_in_made(tensor)
        return node.op == "placeholder" and not node.meta.get(MADE)

    def _tell(self, name: str, ref: WeightRef | None, tensor: torch.Tensor) -> None:
        self.told.append(Told(name, ref or weakref.ref(tensor), told_by(name, tensor)))
        if name in LYING and ref is not None:
            self.as_they_lie.add(ref)

    def _expect(self, place: int, name: str, tensor: torch.Tensor) -> None:
        if (place, name) not in self._expected:
            self._expected.add((place, name))
            self.decisions.expect(place, tells(name, told_by(name, tensor)))
