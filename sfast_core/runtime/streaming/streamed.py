"""A program some of whose weights aren't on the device: each is brought before the instruction that reads it.

At first one by one, just in time, which shows what is made of each in its memory; then by a schedule, through a ring, beside what is computed. Both run
the same instructions on tensors with the same strides, so they give the same bits as with all weights on the device.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Sequence
from typing import TypeAlias

import torch

from ...weights.arriving import Arriving
from ..graphs import DeviceGraphs
from ..instructions import Function, run_all
from .copier import Copier
from .reads import Reads
from .ring import Ring
from .schedule import Schedule, sized

Given: TypeAlias = "torch.Tensor | Arriving"  #: a weight that is there, or one to be brought
_KEPT = 16  # instructions for which a weight that comes one by one waits for its next reader
_FREE_PART = 4  # of what is free, the ring may take the part of one in so many
_MOST_BYTES = 2 << 30  # of the ring, where nobody says: more are ahead of any instruction by then than copies can catch up with
_UNKNOWN_BYTES = 1 << 30  # where it isn't known what is free


class Streamed:
    """One program's way of running with weights that have to be brought. Not thread-safe: its caller holds the device's lock.

    Args:
        function: the program.
        first: which of its arguments is the first weight; behind the weights come constants.
        count: how many weights there are.
        device: where it runs.
        graphs: that device's, among which the ring is; None: the ring is this program's own.
        copier: makes what copies in one run.
    """

    def __init__(
        self,
        function: Function,
        first: int,
        count: int,
        device: torch.device,
        graphs: DeviceGraphs | None,
        copier: Callable[[torch.device], Copier],
    ) -> None:
        self._function, self._device, self._graphs, self._copier = function, device, graphs, copier
        self._places = function.given[first : first + count]
        self._reads = Reads(function, self._places)
        self._ring: Ring | None = None
        self._planned: tuple[object, Schedule] | None = None
        self._sources: list[weakref.ref[torch.Tensor]] = []

    @property
    def schedule(self) -> Schedule | None:
        """By which it ran last, or is to run next."""
        return self._planned[1] if self._planned is not None else None

    @property
    def ring_bytes(self) -> int:
        """What the ring takes."""
        return self._ring.bytes if self._ring is not None and self._ring.alive else 0

    def ready(self) -> bool:
        """Whether the ring is there in which a graph finds its slots."""
        return self._ring is not None and self._ring.alive

    def pinned(self) -> bool:
        """Whether all that was brought last is in pinned memory still."""
        return self._device.type != "cuda" or all(source is not None and source.is_pinned() for source in map(_alive, self._sources))

    def known(self, weights: Sequence[Given]) -> bool:
        """Whether these can be scheduled: a run one by one has shown what is made of them."""
        return self._reads.seen(frozenset(self._arriving(weights)))

    def one_by_one(self, arguments: Sequence[torch.Tensor], weights: Sequence[Given], constants: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The program's results, with each weight brought just before it is read."""
        arriving, values = self._begin(arguments, weights, constants)
        instructions, reads = self._function.instructions, self._reads
        next_read = _next_reads(reads, len(instructions), arriving)
        for index, instruction in enumerate(instructions):
            for place in reads.weights_at(index):
                if place in arriving and values[place] is None:
                    values[place] = self._brought(arriving[place])
            run_all([instruction._replace(last_used=())], values)
            reads.look(index, values)
            for place in instruction.last_used:
                values[place] = None
            for place in reads.weights_at(index):
                if place in arriving and next_read.get((place, index), index) > index + _KEPT:
                    values[place] = None
        for place in self._function.outputs:
            if place in arriving:
                values[place] = self._brought(arriving[place])
        reads.complete(frozenset(self._places))
        return [values[place] for place in self._function.outputs]

    def prepare(self, weights: Sequence[Given], budget_bytes: int | None) -> Schedule:
        """Plan how these are brought, and have a ring for that.

        Args:
            weights: the program's.
            budget_bytes: what the ring may take; None: a part of what is free. It takes more where what one instruction reads, twice, is more.

        Raises:
            RuntimeError: there is no memory for it.
        """
        arriving = self._arriving(weights)
        slots = {place: (each.nbytes, each.in_place) for place, each in arriving.items()}
        shape = (tuple(slots.items()), budget_bytes)
        if self._planned is None or self._planned[0] != shape:
            self._planned = shape, sized(self._reads.uses(slots), self._budget() if budget_bytes is None else budget_bytes)
        schedule = self._planned[1]
        if self._ring is None or not self._ring.alive or self._ring.bytes < schedule.ring_bytes:
            self._ring = self._graphs.ring(self._device, schedule.ring_bytes) if self._graphs is not None else Ring(self._device, schedule.ring_bytes)
        self._sources = [weakref.ref(source) for each in arriving.values() for source in each.sources]
        return schedule

    def run(self, arguments: Sequence[torch.Tensor], weights: Sequence[Given], constants: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """The program's results by the schedule that was prepared for these weights."""
        assert self._planned is not None and self._ring is not None and self._ring.alive
        arriving, values = self._begin(arguments, weights, constants)
        run = _Run(self._planned[1], arriving, self._ring.memory, self._copier(self._device))
        busy, self._ring.busy = self._ring.busy, True
        try:
            run.all(self._function, values)
        finally:
            self._ring.busy = busy
        return [values[place] for place in self._function.outputs]

    def _begin(
        self, arguments: Sequence[torch.Tensor], weights: Sequence[Given], constants: Sequence[torch.Tensor]
    ) -> tuple[dict[int, Arriving], list[torch.Tensor | None]]:
        here = [None if isinstance(weight, Arriving) else weight for weight in weights]
        return self._arriving(weights), self._function.values([*arguments, *here, *constants])

    def _arriving(self, weights: Sequence[Given]) -> dict[int, Arriving]:
        return {place: weight for place, weight in zip(self._places, weights, strict=True) if isinstance(weight, Arriving)}

    def _brought(self, weight: Arriving) -> torch.Tensor:
        slot = torch.empty(weight.nbytes, dtype=torch.uint8, device=self._device)
        for part, source in zip(weight.views(slot), weight.sources, strict=True):
            part.copy_(source)
        return weight.made(slot)

    def _budget(self) -> int:
        if self._graphs is None:
            return _UNKNOWN_BYTES
        return min(_MOST_BYTES, (self._graphs.backend.free_bytes() + self.ring_bytes) // _FREE_PART)


class _Run:
    """One run by a schedule."""

    def __init__(self, schedule: Schedule, arriving: dict[int, Arriving], memory: torch.Tensor, copier: Copier) -> None:
        self._copies, self._arriving, self._memory, self._copier = schedule.copies, arriving, memory, copier
        self._next = 0
        self._marks: dict[int, object] = {}  # behind the last copy that an instruction waits for

    def all(self, function: Function, values: list[torch.Tensor | None]) -> None:
        """Run all instructions on ``values``."""
        end = len(function.instructions)
        stops = sorted({copy.after + 1 for copy in self._copies} | {copy.before for copy in self._copies} | {0, end})
        come = [copy.before for copy in self._copies]
        place = 0
        self._copier.begin()
        for at, until in zip(stops, [*stops[1:], end], strict=True):
            self._start(at - 1)
            if at in self._marks:
                self._copier.wait_for_copies(self._marks.pop(at))
            while place < len(come) and come[place] == at:
                copy = self._copies[place]
                values[copy.weight] = self._arriving[copy.weight].made(self._slot(copy.weight, copy.offset))
                place += 1
            run_all(function.instructions[at:until], values)
        self._copier.end()

    def _start(self, behind: int) -> None:
        """Start the copies that may begin behind this instruction, which is the last that was run."""
        copies = self._copies
        if self._next == len(copies) or copies[self._next].after > behind:
            return
        if behind >= 0:
            self._copier.wait_for_results(self._copier.computed())
        while self._next < len(copies) and copies[self._next].after <= behind:
            copy = copies[self._next]
            weight = self._arriving[copy.weight]
            self._copier.copy(weight.views(self._slot(copy.weight, copy.offset)), weight.sources)
            self._next += 1
            if self._next == len(copies) or copies[self._next].before != copy.before or copies[self._next].after > behind:
                self._marks[copy.before] = self._copier.copied()

    def _slot(self, place: int, offset: int) -> torch.Tensor:
        return self._memory[offset : offset + self._arriving[place].nbytes]


def _next_reads(reads: Reads, count: int, arriving: dict[int, Arriving]) -> dict[tuple[int, int], int]:
    """By weight and instruction, which instruction reads it next."""
    found: dict[tuple[int, int], int] = {}
    later: dict[int, int] = {}
    for index in reversed(range(count)):
        for place in reads.weights_at(index):
            if place in arriving:
                if place in later:
                    found[place, index] = later[place]
                later[place] = index
    return found


def _alive(ref: weakref.ref[torch.Tensor]) -> torch.Tensor | None:
    return ref()
