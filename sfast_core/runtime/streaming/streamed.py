"""Runs instructions some of whose weights aren't on the device, and brings each weight before it is read.

The first run brings them one by one, just in time, and so shows which results lie in a weight's memory. Later runs
follow a schedule, through a ring, while kernels run. Both run the same instructions on tensors with the same strides,
so they give the same bits as with all weights on the device.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, TypeAlias

import torch

from ...weights.arriving import Arriving
from ..holding import in_use
from ..instructions import Function, run_all
from .batches import batched
from .copier import Copier
from .reads import Reads
from .ring import Ring
from .schedule import Copy, Schedule, least, sized

Brought: TypeAlias = "Mapping[int, Arriving]"  #: weights that have to be brought, by their places among the values
_KEPT = 16  # in a run one by one, a weight is kept if it is read again within so many instructions


class Streamed:
    """A list of instructions with weights to bring. Not thread-safe: its caller holds the device's lock.

    Args:
        function: the instructions.
        weights: the places of all weights that they read.
        device: where they run.
    """

    def __init__(self, function: Function, weights: Collection[int], device: torch.device) -> None:
        self._function, self._weights, self._device = function, frozenset(weights), device
        self._reads = Reads(function, self._weights)
        self._planned: tuple[object, Schedule] | None = None

    @property
    def known(self) -> bool:
        """Whether a schedule can be made, after a run one by one."""
        return self._reads.complete

    def order(self, brought: Collection[int]) -> list[int]:
        """These places in the order in which they are read first."""
        return list(dict.fromkeys(place for places in self._reads.of for place in places if place in brought))

    def least(self, brought: Brought) -> int:
        """The least size of a ring for these."""
        return least(self._reads.uses(_slots(brought)))

    def one_by_one(self, brought: Brought, values: list[Any]) -> None:
        """Run on ``values``, with each weight brought just before it is read."""
        instructions, reads = self._function.instructions, self._reads
        next_read = _next_reads(reads, len(instructions), brought)
        for index, instruction in enumerate(instructions):
            for place in reads.weights_at(index):
                if place in brought and values[place] is None:
                    values[place] = brought[place].brought(self._device)
            run_all([instruction._replace(last_used=())], values)
            reads.look(index, values)
            for place in instruction.last_used:
                values[place] = None
            for place in reads.weights_at(index):
                if place in brought and next_read.get((place, index), index) > index + _KEPT:
                    values[place] = None
        for place in self._function.outputs:
            if place in brought:
                values[place] = brought[place].brought(self._device)
        reads.complete = True

    def plan(self, brought: Brought, budget_bytes: int) -> Schedule:
        """A schedule for these through a ring of at most ``budget_bytes``, or of as much as two instructions read."""
        slots = _slots(brought)
        shape = (tuple(slots.items()), budget_bytes)
        if self._planned is None or self._planned[0] != shape:
            self._planned = shape, sized(self._reads.uses(slots), budget_bytes)
        return self._planned[1]

    def run(self, schedule: Schedule, brought: Brought, values: list[Any], ring: Ring, copier: Copier) -> None:
        """Run on ``values`` by the schedule for these weights. The next run overwrites what lies in the ring."""
        with in_use([ring]):
            _Run(schedule, brought, ring.memory, copier).all(self._function, values)


class _Run:
    """One run by a schedule."""

    def __init__(self, schedule: Schedule, brought: Brought, memory: torch.Tensor, copier: Copier) -> None:
        self._copies, self._brought, self._memory, self._copier = schedule.copies, brought, memory, copier
        self._batches = batched(
            schedule.copies, {place: weight.nbytes for place, weight in brought.items()}, schedule.ring_bytes
        )
        self._next = 0
        self._marks: dict[int, object] = {}  # by instruction, after the last copy that it waits for

    def all(self, function: Function, values: list[Any]) -> None:
        """Run all instructions on ``values``."""
        end = len(function.instructions)
        stops = {batch.after + 1 for batch in self._batches} | {batch.before for batch in self._batches}
        ordered = sorted(stops | {copy.before for copy in self._copies} | {0, end})
        place = 0
        self._copier.begin()
        for at, until in zip(ordered, [*ordered[1:], end], strict=True):
            self._start(at - 1)
            if at in self._marks:
                self._copier.wait_for_copies(self._marks.pop(at))
            while place < len(self._copies) and self._copies[place].before == at:
                copy = self._copies[place]
                values[copy.weight] = self._brought[copy.weight].made(self._slot(copy))
                place += 1
            run_all(function.instructions[at:until], values)
        self._copier.end()

    def _start(self, behind: int) -> None:
        """Start the copies that may begin after this instruction, which was the last to run."""
        batches = self._batches
        if self._next == len(batches) or batches[self._next].after > behind:
            return
        if behind >= 0:
            self._copier.wait_for_results(self._copier.computed())
        while self._next < len(batches) and batches[self._next].after <= behind:
            batch = batches[self._next]
            for copy in batch.copies:
                weight = self._brought[copy.weight]
                self._copier.copy(weight.views(self._slot(copy)), weight.sources)
            self._next += 1
            if (
                self._next == len(batches)
                or batches[self._next].before != batch.before
                or batches[self._next].after > behind
            ):
                self._marks[batch.before] = self._copier.copied()

    def _slot(self, copy: Copy) -> torch.Tensor:
        return self._memory[copy.offset : copy.offset + self._brought[copy.weight].nbytes]


def _slots(brought: Brought) -> dict[int, tuple[int, bool]]:
    return {place: (weight.nbytes, weight.in_place) for place, weight in brought.items()}


def _next_reads(reads: Reads, count: int, brought: Brought) -> dict[tuple[int, int], int]:
    """By weight and instruction, the next instruction that reads it."""
    found: dict[tuple[int, int], int] = {}
    later: dict[int, int] = {}
    for index in reversed(range(count)):
        for place in reads.weights_at(index):
            if place in brought:
                if place in later:
                    found[place, index] = later[place]
                later[place] = index
    return found
