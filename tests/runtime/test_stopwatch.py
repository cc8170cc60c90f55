"""How many launches are timed, and what of them counts."""

from __future__ import annotations

import pytest

from sfast_core.runtime.stopwatch import Stopwatch
from tests.fakes import FakeBackend


class Kernel:
    """Takes ``seconds`` by the fake clock, or ``late`` at its first launches."""

    def __init__(self, seconds: float, late: float | None = None, late_launches: int = 0) -> None:
        self.seconds, self.late, self.late_launches = seconds, late, late_launches
        self.launches = 0

    def __call__(self) -> None:
        self.launches += 1
        CLOCK[0] += self.late if self.late is not None and self.launches <= self.late_launches else self.seconds


CLOCK = [0.0]


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfast_core.runtime.stopwatch.time.perf_counter", lambda: CLOCK[0])


@pytest.mark.parametrize(("seconds", "launches"), [(2e-6, 10), (0.1e-3, 10), (0.25e-3, 2), (5e-3, 1)])
def test_a_graph_has_fewer_launches_the_longer_they_take(seconds: float, launches: int) -> None:
    kernel = Kernel(seconds)
    assert Stopwatch(FakeBackend()).seconds(kernel) == pytest.approx(seconds)
    assert kernel.launches == 3 + launches + 3 * launches  # alone and to warm up, captured, in three replays


def test_a_first_launch_that_was_slow_on_the_cpu_does_not_make_a_short_graph() -> None:
    kernel = Kernel(1e-6, late=1.0, late_launches=2)
    assert Stopwatch(FakeBackend()).seconds(kernel) == pytest.approx(1e-6)
    assert kernel.launches == 2 + (1 + 1 + 3) + (1 + 10 + 30)


def test_what_is_beaten_is_not_replayed_again() -> None:
    slow, close = Kernel(2.0), Kernel(1.4)
    Stopwatch(FakeBackend()).seconds(slow, fastest=1.0)
    Stopwatch(FakeBackend()).seconds(close, fastest=1.0)
    assert slow.launches == 2 + 1 + 1 + 1 and close.launches == 2 + 1 + 1 + 3


def test_what_cannot_be_captured_takes_for_ever_and_what_fails_says_so() -> None:
    backend = FakeBackend()
    backend.failures = [RuntimeError("not permitted when stream is capturing")]
    assert Stopwatch(backend).seconds(Kernel(1.0)) == float("inf")

    def broken() -> None:
        raise ValueError("no kernel image")

    with pytest.raises(ValueError, match="no kernel image"):
        Stopwatch(backend).seconds(broken)
    assert backend.free == FakeBackend().free
