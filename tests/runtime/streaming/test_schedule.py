"""The schedule of copies, checked by playing it: enumerated small ones, and random ones."""

from __future__ import annotations

import itertools
import random

import pytest

from sfast_core.runtime.streaming.batches import Batch, batched
from sfast_core.runtime.streaming.schedule import (
    ALIGNMENT,
    DoesNotFit,
    Schedule,
    Use,
    aligned,
    least,
    plan,
    sized,
)


def played(uses: list[Use], schedule: Schedule) -> None:
    """Run a call by a schedule: each reader finds its weight, whole, in a range that nobody has overwritten and nobody
    overwrites meanwhile.
    """
    sizes = {use.weight: aligned(use.bytes) for use in uses}
    copies = schedule.copies
    assert [copy.before for copy in copies] == sorted(copy.before for copy in copies)
    assert [copy.after for copy in copies] == sorted(copy.after for copy in copies)
    for copy in copies:
        assert -1 <= copy.after < copy.before <= copy.until and copy.offset % ALIGNMENT == 0
        assert copy.offset + sizes[copy.weight] <= schedule.ring_bytes
    for earlier, later in itertools.combinations(copies, 2):
        apart = (
            earlier.offset + sizes[earlier.weight] <= later.offset
            or later.offset + sizes[later.weight] <= earlier.offset
        )
        assert apart or later.after >= earlier.until, "a range is overwritten that is still read"
    for use in uses:
        for first, last in use.reads:
            assert any(copy.weight == use.weight and copy.before <= first and copy.until >= last for copy in copies), (
                "a reader finds nothing"
            )
    assert schedule.moved_bytes == sum(sizes[copy.weight] for copy in copies)
    played_in_batches(uses, schedule)


def played_in_batches(uses: list[Use], schedule: Schedule) -> tuple[Batch, ...]:
    """All copies, in order, none before it may begin, each there when its reader comes, and no batch that waits for its
    own reader.
    """
    batches = batched(schedule.copies, {use.weight: use.bytes for use in uses}, schedule.ring_bytes)
    assert [copy for batch in batches for copy in batch.copies] == [*schedule.copies]
    for batch in batches:
        assert batch.after == max(copy.after for copy in batch.copies) and batch.before == min(
            copy.before for copy in batch.copies
        )
        assert batch.after < batch.before
    for earlier, later in itertools.pairwise(batches):
        assert earlier.after <= later.after and earlier.before <= later.before
    return batches


def one_each(*sizes: int) -> list[Use]:
    return [Use(index, size * ALIGNMENT, ((index, index),)) for index, size in enumerate(sizes)]


def smallest(uses: list[Use]) -> int:
    """The bytes that are read at once at the worst instruction."""
    reads = [(first, last, use.bytes) for use in uses for first, last in use.reads]
    return max(sum(size for first, last, size in reads if first <= at <= last) for at, _, _ in reads)


def test_as_many_are_ahead_as_fit() -> None:
    schedule = plan(one_each(1, 1, 1, 1, 1), 2 * ALIGNMENT)
    assert [copy.after for copy in schedule.copies] == [-1, -1, 0, 1, 2]
    assert [copy.offset for copy in schedule.copies] == [0, ALIGNMENT, 0, ALIGNMENT, 0]
    assert all(copy.after == -1 for copy in plan(one_each(1, 1, 1, 1, 1), 5 * ALIGNMENT).copies)


def test_a_ring_has_room_for_the_two_largest_and_no_more_than_all() -> None:
    uses = one_each(1, 7, 2, 1, 1, 1, 1, 1)
    assert smallest(uses) == 7 * ALIGNMENT and least(uses) == 9 * ALIGNMENT
    assert sized(uses, 0).ring_bytes == 9 * ALIGNMENT
    assert sized(uses, 1 << 40).ring_bytes == 15 * ALIGNMENT
    assert sized(uses, 14 * ALIGNMENT + 1).ring_bytes == 15 * ALIGNMENT
    assert least(one_each(7, 7, 7)) == 14 * ALIGNMENT and least(one_each(7)) == 7 * ALIGNMENT and least([]) == 0


def test_what_is_read_far_apart_is_copied_twice() -> None:
    uses = [
        Use(0, ALIGNMENT, ((0, 0), (9, 9))),
        *(Use(index, 4 * ALIGNMENT, ((index, index),)) for index in range(1, 9)),
    ]
    schedule = sized(uses, 8 * ALIGNMENT)
    played(uses, schedule)
    assert [copy.before for copy in schedule.copies if copy.weight == 0] == [0, 9]
    near = [Use(0, ALIGNMENT, ((0, 0), (2, 2))), Use(1, ALIGNMENT, ((1, 1),))]
    assert len(sized(near, 64 * ALIGNMENT).copies) == 2


def test_what_lies_in_a_weight_keeps_its_range() -> None:
    uses = [Use(0, ALIGNMENT, ((0, 5),)), *(Use(index, ALIGNMENT, ((index, index),)) for index in range(1, 5))]
    schedule = plan(uses, 2 * ALIGNMENT)
    played(uses, schedule)
    assert {copy.offset for copy in schedule.copies if copy.weight} == {ALIGNMENT}


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(DoesNotFit, match="have no room in a ring of 256 bytes"):
        plan([Use(0, ALIGNMENT, ((0, 0),)), Use(1, ALIGNMENT, ((0, 0),))], ALIGNMENT)


def test_neighbours_are_waited_for_together() -> None:
    uses = [Use(index, 1 << 20, ((index, index),)) for index in range(64)]
    batches = played_in_batches(uses, plan(uses, 1 << 30))
    assert [len(batch.copies) for batch in batches] == [1, 1, 2, 4, 8, 16, 16, 16], (
        "the first instruction waits for the first alone"
    )
    tight = played_in_batches(uses, plan(uses, 4 << 20))
    assert all(batch.after < batch.before for batch in tight) and len(tight) > 60, (
        "as many are ahead as without batches"
    )


def test_every_small_call() -> None:
    """All orders of sizes 1 to 3 over five weights, each read by one or by two instructions, in each ring from the
    smallest on.
    """
    for sizes in itertools.product((1, 2, 3), repeat=4):
        for spans in ((0, 0, 0, 0), (1, 0, 2, 0), (0, 3, 0, 0), (1, 1, 1, 1)):
            uses = [
                Use(index, size * ALIGNMENT, ((index, index + span),))
                for index, (size, span) in enumerate(zip(sizes, spans, strict=True))
            ]
            for ring in range(smallest(uses) // ALIGNMENT, sum(sizes) + 1):
                try:
                    schedule = plan(uses, ring * ALIGNMENT)
                except DoesNotFit:  # held in the middle of the ring: the next size up has room
                    assert ring * ALIGNMENT < 2 * smallest(uses)
                    continue
                played(uses, schedule)
            played(uses, sized(uses, 0))


@pytest.mark.parametrize("seed", range(200))
def test_random_calls(seed: int) -> None:
    draw = random.Random(seed)
    instructions = draw.randrange(1, 60)
    uses = []
    for weight in range(draw.randrange(1, 80)):
        firsts = sorted(draw.sample(range(instructions + 1), min(instructions + 1, draw.choice((1, 1, 1, 2, 3)))))
        reads = tuple(
            (first, min(instructions, first + draw.choice((0, 0, 0, 1, 2, draw.randrange(20))))) for first in firsts
        )
        uses.append(Use(weight, draw.choice((1, 3, 256, 1000, 5000, 20000, 100000)), reads))
    total = sum(aligned(use.bytes) for use in uses)
    for budget in (0, total // 10, total // 3, total, 10 * total):
        schedule = sized(uses, budget)
        played(uses, schedule)
        assert schedule.ring_bytes <= 2 * max(total, aligned(budget))
