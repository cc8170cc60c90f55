"""A call's time by a schedule, worked out by hand for small ones."""

from __future__ import annotations

import pytest

from benchmarks.streaming_timeline import played
from sfast_core.runtime.streaming.batches import Batch
from sfast_core.runtime.streaming.schedule import Copy


def batch(weight: int, after: int, before: int) -> Batch:
    return Batch((Copy(weight, 0, after, before, before),), after, before)


def test_copies_run_beside_what_is_computed() -> None:
    ahead = [batch(0, -1, 0), batch(1, -1, 1)]
    assert played(ahead, [10, 10], [5.0, 5.0], 1.0, 0.0, 0.0) == pytest.approx(25), (
        "bound by the copies, and what comes behind the last"
    )
    assert played(ahead, [10, 10], [50.0, 50.0], 1.0, 0.0, 0.0) == pytest.approx(110), (
        "bound by what is computed, and the first copy"
    )
    in_turn = [batch(0, -1, 0), batch(1, 0, 1)]
    assert played(in_turn, [10, 10], [5.0, 5.0], 1.0, 0.0, 0.0) == pytest.approx(30), (
        "the second waits for the first reader"
    )


def test_each_copy_and_each_wait_costs() -> None:
    together = [Batch((Copy(0, 0, -1, 0, 0), Copy(1, 10, -1, 1, 1)), -1, 0)]
    assert played(together, [10, 10], [5.0, 5.0], 1.0, 1.0, 2.0) == pytest.approx(20 + 2 * 1 + 2 + 10)
    apart = [batch(0, -1, 0), batch(1, -1, 1)]
    assert played(apart, [10, 10], [5.0, 5.0], 1.0, 1.0, 2.0) == pytest.approx(2 * (10 + 1 + 2) + 5)
