"""Traces that serve next to no call."""

from __future__ import annotations

from sfast_core.runtime.recompile_limit import RecompileLimit


def traces(recompile_limit: RecompileLimit, calls: int, serve: int = 0, forms: object = "a") -> list[int]:
    """The calls that are traced, where each trace serves so many more before it falls."""
    traced = []
    for call in range(calls):
        if recompile_limit.reason(forms) is None:
            traced.append(call)
            recompile_limit.traced(forms, f"change {len(traced)}").served += serve
    return traced


def test_ten_in_a_row_and_then_ever_fewer() -> None:
    found = traces(RecompileLimit(), 4000)
    gaps = [later - earlier - 1 for earlier, later in zip(found, found[1:], strict=False)]
    assert gaps[:15] == [0] * 9 + [2, 6, 14, 30, 62, 126] and set(gaps[15:]) == {128}


def test_those_that_serve_a_call_may_be_twice_as_many() -> None:
    assert traces(RecompileLimit(), 21, serve=1) == [*range(18), 20]


def test_traces_that_pay_may_fall() -> None:
    assert traces(RecompileLimit(), 100, serve=8) == list(range(100))
    assert len(traces(RecompileLimit(), 100, serve=7)) < 25


def test_the_reason_is_the_last_change_and_each_forms_counts_by_itself() -> None:
    recompile_limit = RecompileLimit()
    traces(recompile_limit, 11)
    assert recompile_limit.reason("a") == "change 10" and recompile_limit.reason("b") is None


def test_a_trace_that_pays_ends_it() -> None:
    recompile_limit = RecompileLimit()
    traces(recompile_limit, 30)
    while recompile_limit.reason("a"):
        pass
    recompile_limit.traced("a", "once more").served += 8
    assert traces(recompile_limit, 8) == list(range(8))
    traces(recompile_limit, 30)
    recompile_limit.clear()
    assert traces(recompile_limit, 8) == list(range(8))


def test_sizes_that_never_come_again_are_forgotten() -> None:
    recompile_limit = RecompileLimit()
    for side in range(1000):
        recompile_limit.traced(side, "another size")
    assert len(recompile_limit._tallies) == 256 and traces(recompile_limit, 3, forms=999) == [0, 1, 2]
