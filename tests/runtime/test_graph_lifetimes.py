"""Whether another graph is worth capturing, by how long those before it lived."""

from __future__ import annotations

from sfast_core.runtime.graph_lifetimes import ENOUGH_CALLS, GraphLifetimes

HERE, THERE = [1, 2], [1, 3]


def _lived(*calls: int) -> GraphLifetimes:
    """Behind graphs that served so many calls each."""
    lifetimes = GraphLifetimes()
    for served in calls:
        lifetimes.begins()
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
        lifetimes.begins()
        lifetimes.ended_by_inputs()
        assert lifetimes.worth_another(HERE)
