"""Whether another graph is worth capturing, by how long those before it lived."""

from __future__ import annotations

import pytest

from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS, GraphLifetimes
from tests.fakes import FakeBackend

HERE, THERE = [1, 2], [1, 3]


class Clock(FakeBackend):
    """Calls that take a graph and the kernels so long."""

    def __init__(self, replayed_s: float, fused_s: float) -> None:
        super().__init__()
        self.now, self.of, self.done = 0.0, {True: replayed_s, False: fused_s}, True

    def mark(self) -> float:  # type: ignore[override]
        return self.now

    def seconds_between(self, start: float, end: float) -> float | None:  # type: ignore[override]
        return end - start if self.done else None

    def call(self, lifetimes: GraphLifetimes, by_graph: bool) -> None:
        start = lifetimes.call_begins()
        self.now += self.of[by_graph]
        lifetimes.call_ends(start, by_graph)


def _pictures(lifetimes: GraphLifetimes, clock: Clock, pictures: int, steps: int) -> list[int]:
    """How many graphs are captured for each picture, whose weights lie elsewhere than the last one's."""
    captures = []
    for picture in range(pictures):
        captured = 0
        for _ in range(steps):
            if not captured and lifetimes.worth_another([picture]):
                lifetimes.begins(0.2)
                captured += 1
            lifetimes.served += bool(captured)
            clock.call(lifetimes, bool(captured))
        captures.append(captured)
    return captures


def _lived(*calls: int) -> GraphLifetimes:
    """Behind graphs that served so many calls each."""
    lifetimes = GraphLifetimes()
    for served in calls:
        lifetimes.begins(0.2)
        lifetimes.served = served
        lifetimes.worth_another(HERE)
    return lifetimes


def _calls_before_a_graph(lifetimes: GraphLifetimes) -> int:
    return next(call for call in range(1000) if lifetimes.worth_another(THERE))


def test_the_first_two_come_at_once() -> None:
    assert GraphLifetimes().worth_another(HERE) and _lived(1).worth_another(HERE)


def test_behind_short_lives_weights_have_to_stay_and_longer_each_time() -> None:
    waits = [_calls_before_a_graph(_lived(*[3] * lives)) for lives in range(7)]
    assert waits == [0, 0, *(ENOUGH_CALLS * times for times in (1, 2, 4, 4, 4))]


def test_a_long_life_ends_that() -> None:
    assert _lived(3, 3, 3, ENOUGH_CALLS).worth_another(HERE)


def test_a_move_begins_the_wait_anew() -> None:
    lifetimes = _lived(1, 1)
    for _ in range(5):
        for _ in range(ENOUGH_CALLS // 2):
            assert not lifetimes.worth_another(THERE)
        assert not lifetimes.worth_another(HERE)
    assert _calls_before_a_graph(lifetimes) == ENOUGH_CALLS


def test_a_graph_that_is_left_for_what_it_is_handed_does_not_count() -> None:
    lifetimes = GraphLifetimes()
    for _ in range(5):
        lifetimes.begins(0.2)
        lifetimes.ended_by_inputs()
        assert lifetimes.worth_another(HERE)


def test_a_graph_that_saves_more_than_it_costs_is_captured_for_each_picture() -> None:
    clock = Clock(replayed_s=0.045, fused_s=0.16)
    assert _pictures(GraphLifetimes(clock), clock, 6, steps=4) == [1] * 6


@pytest.mark.parametrize(("steps", "captures"), [(4, [1, 1, 0, 0, 0, 0]), (6, [1, 1, 0, 0, 0, 0]), (20, [1] * 6)])
def test_a_graph_that_saves_less_is_not(steps: int, captures: list[int]) -> None:
    clock = Clock(replayed_s=0.13, fused_s=0.16)
    assert _pictures(GraphLifetimes(clock), clock, 6, steps) == captures


def test_calls_without_a_graph_count_as_a_life() -> None:
    """Too short to bring in a capture that comes in the middle; the next one comes in front."""
    clock = Clock(replayed_s=0.13, fused_s=0.143)
    lifetimes = GraphLifetimes(clock)
    assert _pictures(lifetimes, clock, 3, steps=4) == [1, 1, 0]
    assert _pictures(lifetimes, clock, 4, steps=16) == [0, 1, 1, 1]


def test_longer_pictures_bring_graphs_back() -> None:
    clock = Clock(replayed_s=0.13, fused_s=0.16)
    lifetimes = GraphLifetimes(clock)
    assert _pictures(lifetimes, clock, 3, steps=4) == [1, 1, 0]
    assert _pictures(lifetimes, clock, 3, steps=20) == [1] * 3


def test_what_the_device_has_not_finished_is_not_known() -> None:
    clock = Clock(replayed_s=0.045, fused_s=0.16)
    clock.done = False
    assert _pictures(GraphLifetimes(clock), clock, 4, steps=4) == [1, 1, 0, 0]


def test_where_graphs_live_long_nothing_is_measured() -> None:
    clock = Clock(replayed_s=1, fused_s=2)
    clock.mark = lambda: pytest.fail("a mark was made")  # type: ignore[method-assign,return-value]
    _pictures(GraphLifetimes(clock), clock, 3, steps=20)
