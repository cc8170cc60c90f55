"""Plans for a whole call which weight is copied to where and when, by arithmetic on bytes and numbers of instructions.

A ring of device memory is filled front to back and round again. A copy may begin as soon as the last reader of whatever
lay in its range is done, so that as many copies are ahead of the running instruction as the ring holds. Copies run in
order, one after the other, on a stream of their own.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

#: Of a slot, in bytes: enough for kernels that read 16 bytes at a time, TMA descriptors and the allocator's own blocks.
ALIGNMENT = 256
_SPLIT = 4  # a weight is copied again for its next use if that comes later than one in so many parts of the ring


class DoesNotFit(Exception):
    """The weights that are needed at once don't fit into the ring."""


@dataclass(frozen=True)
class Use:
    """When one weight is read.

    Attributes:
        weight: its number.
        bytes: the size of its slot.
        reads: pairs of instructions, in order: one that reads the weight, and the last that reads what the first made
            of it in the same memory.
    """

    weight: int
    bytes: int
    reads: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Copy:
    """The copy of one weight into one range of the ring.

    Attributes:
        weight: its number.
        offset: where the range begins.
        after: the instruction after which the copy may begin; -1: at once.
        before: the instruction before which it must have ended.
        until: the last instruction that reads the range.
    """

    weight: int
    offset: int
    after: int
    before: int
    until: int


@dataclass(frozen=True)
class Schedule:
    """All copies of a call.

    Attributes:
        copies: in order; neither their ``after`` nor their ``before`` ever decreases.
        ring_bytes: the size of the ring that they are made for.
        moved_bytes: what all of them copy, with alignment.
    """

    copies: tuple[Copy, ...]
    ring_bytes: int
    moved_bytes: int


@dataclass(frozen=True)
class _Visit:
    weight: int
    bytes: int
    first: int
    last: int


def aligned(size: int) -> int:
    """``size`` rounded up to a multiple of :data:`ALIGNMENT`."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def plan(uses: Sequence[Use], ring_bytes: int) -> Schedule:
    """The copies of a call through a ring of this size.

    Raises:
        DoesNotFit: no order of ranges has room for what is read at once.
    """
    visits = _visits(uses, ring_bytes)
    copies: list[Copy] = []
    held: list[Copy] = []  # what lies in the ring, by offset
    sizes = {use.weight: aligned(use.bytes) for use in uses}
    cursor, after = 0, -1
    for visit in visits:
        size = sizes[visit.weight]
        offset = _range(held, sizes, visit, size, cursor, ring_bytes)
        over = [copy for copy in held if copy.offset < offset + size and offset < copy.offset + sizes[copy.weight]]
        after = max([after, *(copy.until for copy in over)])
        copy = Copy(visit.weight, offset, after, visit.first, visit.last)
        held = [each for each in held if each not in over]
        held.append(copy)
        copies.append(copy)
        cursor = offset + size
    return Schedule(tuple(copies), ring_bytes, sum(sizes[copy.weight] for copy in copies))


def least(uses: Sequence[Use]) -> int:
    """The least ring in which something is copied while any instruction runs: the two largest instructions' weights."""
    visits = _visits(uses, 0)
    most, at = _worst(visits)
    return most + _worst([visit for visit in visits if not visit.first <= at <= visit.last])[0]


def _worst(visits: Sequence[_Visit]) -> tuple[int, int]:
    """The most bytes that are needed at once, and at which instruction."""
    changes: dict[int, int] = {}
    for visit in visits:
        changes[visit.first] = changes.get(visit.first, 0) + aligned(visit.bytes)
        changes[visit.last + 1] = changes.get(visit.last + 1, 0) - aligned(visit.bytes)
    most, worst, now = 0, -1, 0
    for at in sorted(changes):
        now += changes[at]
        if now > most:
            most, worst = now, at
    return most, worst


def sized(uses: Sequence[Use], budget_bytes: int) -> Schedule:
    """A call's copies through a ring of ``budget_bytes``, or the smallest for its two largest instructions.

    Raises:
        DoesNotFit: not even a ring of all weights has room.
    """
    total = sum(aligned(use.bytes) for use in uses)
    size = min(total, max(aligned(budget_bytes), least(uses)))
    while True:
        try:
            return plan(uses, size)
        except DoesNotFit:
            if size >= 2 * total:  # with each weight once, in order, a ring of all of them has room
                raise
            size = min(2 * total, size + size // 4 + ALIGNMENT)


def _visits(uses: Sequence[Use], ring_bytes: int) -> list[_Visit]:
    """Each weight as often as it has to be copied, in the order in which these copies are needed."""
    firsts = sorted((use.reads[0][0], aligned(use.bytes)) for use in uses)
    needed = [0]
    for _, size in firsts:
        needed.append(needed[-1] + size)
    places, all_fit = [first for first, _ in firsts], needed[-1] <= ring_bytes
    visits: list[_Visit] = []
    for use in uses:
        first, last = use.reads[0]
        for begin, end in use.reads[1:]:
            if not all_fit and begin > last + 1 and _between(places, needed, last, begin) * _SPLIT > ring_bytes:
                visits.append(_Visit(use.weight, use.bytes, first, last))
                first, last = begin, end
            else:
                last = max(last, end)
        visits.append(_Visit(use.weight, use.bytes, first, last))
    return sorted(visits, key=lambda visit: (visit.first, visit.weight))


def _between(places: Sequence[int], needed: Sequence[int], last: int, begin: int) -> int:
    """The bytes of weights whose first use lies between two instructions."""
    return max(0, needed[bisect_left(places, begin)] - needed[bisect_right(places, last)])


def _range(held: Sequence[Copy], sizes: dict[int, int], visit: _Visit, size: int, cursor: int, ring_bytes: int) -> int:
    """The offset for the next copy: the first place from the cursor on, round the ring, that is free by then."""
    kept = sorted((copy.offset, copy.offset + sizes[copy.weight]) for copy in held if copy.until >= visit.first)
    for start, end in ((cursor, ring_bytes), (0, min(ring_bytes, cursor + size))):
        offset = start
        for begin, behind in kept:
            if behind <= offset:
                continue
            if begin >= offset + size:
                break
            offset = behind
        if offset + size <= end:
            return offset
    raise DoesNotFit(f"{size} bytes for instruction {visit.first} have no room in a ring of {ring_bytes} bytes")
