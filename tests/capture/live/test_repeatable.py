"""Which functions may run twice for one call: those that give the same for the same, and leave nothing behind."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from sfast_core.capture.live.repeatable import may_run_twice, state_of
from tests.live import Host

COUNTS: dict[str, int] = {}
STATE = SimpleNamespace(calls=0)
SCALES = {64: 1.5}


def helper(x: torch.Tensor) -> torch.Tensor:
    return x * SCALES[64]


def counting(x: torch.Tensor) -> torch.Tensor:
    COUNTS["calls"] = COUNTS.get("calls", 0) + 1
    return x


def closing_over(value: Any) -> Callable[..., Any]:
    return lambda x, skip, options: (x, skip, value)


def _filtered(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    x[:, : x.shape[1] // 2] = x[:, : x.shape[1] // 2] * SCALES[64]
    return torch.fft.ifftn(torch.fft.fftn(x)).real, helper(skip)


def _into_the_options(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    options["options"]["seen"] = 1
    return x, skip


def _takes_out(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    options.pop("seen", None)
    return x, skip


def _keeps(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    STATE.calls = 1
    return x, skip


def _by_another(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    return counting(x), skip


def _reads_an_object(x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
    return x * STATE.calls, skip


class Callable_:
    def __call__(self, x: torch.Tensor, skip: torch.Tensor, options: dict[str, Any]) -> Any:
        return x, skip


@pytest.mark.parametrize(
    "function", [_filtered, closing_over({3: (1.1, 0.9)}), closing_over([1, "a", None]), closing_over(helper)]
)
def test_what_may_run_twice(function: Any) -> None:
    assert state_of(function) is not None and state_of(function) == state_of(function)


@pytest.mark.parametrize(
    "function",
    [
        *(
            _into_the_options,
            _takes_out,
            _keeps,
            _by_another,
            _reads_an_object,
            Callable_(),
            Callable_().__call__,
            torch.nn.Linear(2, 2),
        ),
        *map(closing_over, (torch.ones(2), STATE, iter([1]), counting, torch.nn.Linear(2, 2))),
    ],
)
def test_what_may_not(function: Any) -> None:
    assert state_of(function) is None


def test_what_it_closes_over_and_changes_is_told() -> None:
    step = 0
    seen: list[int] = []

    def count(x: Any, skip: Any, options: Any) -> Any:
        nonlocal step
        step += 1
        return x, skip

    def note(x: Any, skip: Any, options: Any) -> Any:
        seen.append(1)
        return x, skip

    for function in (count, note):
        before = state_of(function)
        function(1, 2, {})
        assert before is not None and state_of(function) != before


def test_what_it_only_overwrites_is_no_state_of_its_own() -> None:
    """A map that is kept for later: the second run leaves what it would have left alone."""
    kept: Any = None
    total: Any = 0

    def keep(x: Any, skip: Any, options: Any) -> Any:
        nonlocal kept
        kept = x * 2
        return x, skip

    def add(x: Any, skip: Any, options: Any) -> Any:
        nonlocal total
        total = total + x
        return x, skip

    def through_another(x: Any, skip: Any, options: Any) -> Any:
        nonlocal total
        total = x

        def look() -> Any:
            return total

        return look(), skip

    before = state_of(keep)
    keep(torch.ones(2), 2, {})
    assert before is not None and state_of(keep) == before and kept is not None
    for function in (add, through_another):
        function(torch.ones(2), 2, {})
        assert state_of(function) is None, function


def test_what_one_sets_and_another_looks_at_may_not_run_twice() -> None:
    """The second time it would be looked at as the first time has left it."""
    shared: Any = 1.0
    kept: Any = None

    def put(value: Any) -> None:
        nonlocal shared
        shared = value

    def writes(x: Any) -> Any:
        put(x)
        return x

    def reads(x: Any) -> Any:
        return x * shared

    def keeps(x: Any) -> Any:
        nonlocal kept
        kept = x
        return x

    writing, reading, keeping = map(state_of, (writes, reads, keeps))
    assert may_run_twice([writing, keeping]) and may_run_twice([reading, keeping]) and kept is None
    assert not may_run_twice([reading, writing]) and not may_run_twice([keeping, None])


def _times(host: Host, function: Any) -> int:
    """How often a function runs in the first call."""
    runs = []
    before = sys.getprofile()
    sys.setprofile(
        lambda frame, event, _: runs.append(1) if event == "call" and frame.f_code is function.__code__ else None
    )
    try:
        host(torch.randn(2, 5, 8), after=[function])
    finally:
        sys.setprofile(before)
    assert host.calls == {"traced": 1}
    return len(runs)


@pytest.mark.skipif(not hasattr(sys, "monitoring"), reason="recording takes the profiler's place before Python 3.12")
@pytest.mark.parametrize(
    ("function", "times"),
    [
        (lambda x, options: x * 2, 2),
        (lambda x, options: x + torch.rand(1), 1),
        (lambda x, options: x * (1 + random.random()), 1),
        (lambda x, options, seen=[0]: (seen.append(1), x * len(seen))[1], 1),  # noqa: B006
    ],
    ids=["pure", "random", "Python's random", "a default that it changes"],
)
def test_a_first_call_returns_what_later_ones_will(function: Any, times: int) -> None:
    assert _times(Host(), function) == times
