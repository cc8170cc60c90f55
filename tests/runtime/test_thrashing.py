"""Traces that serve next to no call."""

from __future__ import annotations

from sfast_core.runtime.recompile_limit import Thrashing


def traces(thrashing: Thrashing, calls: int, serve: int = 0, layout: object = "a") -> list[int]:
    """The calls that are traced, where each trace serves so many more before it falls."""
    traced = []
    for call in range(calls):
        if thrashing.reason(layout) is None:
            traced.append(call)
            thrashing.traced(layout, f"change {len(traced)}").served += serve
    return traced


def test_ten_in_a_row_and_then_ever_fewer() -> None:
    found = traces(Thrashing(), 4000)
    gaps = [later - earlier - 1 for earlier, later in zip(found, found[1:], strict=False)]
    assert gaps[:15] == [0] * 9 + [2, 6, 14, 30, 62, 126] and set(gaps[15:]) == {128}


def test_those_that_serve_a_call_may_be_twice_as_many() -> None:
    assert traces(Thrashing(), 21, serve=1) == [*range(18), 20]


def test_traces_that_pay_may_fall() -> None:
    assert traces(Thrashing(), 100, serve=8) == list(range(100))
    assert len(traces(Thrashing(), 100, serve=7)) < 25


def test_the_reason_is_the_last_change_and_each_layout_counts_by_itself() -> None:
    thrashing = Thrashing()
    traces(thrashing, 11)
    assert thrashing.reason("a") == "change 10" and thrashing.reason("b") is None


def test_a_trace_that_pays_ends_it() -> None:
    thrashing = Thrashing()
    traces(thrashing, 30)
    while thrashing.reason("a"):
        pass
    thrashing.traced("a", "once more").served += 8
    assert traces(thrashing, 8) == list(range(8))
    traces(thrashing, 30)
    thrashing.clear()
    assert traces(thrashing, 8) == list(range(8))


def test_sizes_that_never_come_again_are_forgotten() -> None:
    thrashing = Thrashing()
    for side in range(1000):
        thrashing.traced(side, "another size")
    assert len(thrashing._tallies) == 256 and traces(thrashing, 3, layout=999) == [0, 1, 2]
