"""How many launches are timed, and what of them counts."""

from __future__ import annotations

import pytest

from sfast_core.runtime.stopwatch import Stopwatch
from tests.fakes import FakeBackend


class Clock:
    """The CPU's time, and when the device will be done."""

    now = 0.0
    done = 0.0


class Device(FakeBackend):
    """Works through what is launched, beside the CPU.

    ``interrupted``: how much longer the CPU waits for it, the next times.
    """

    def __init__(self) -> None:
        super().__init__()
        self.interrupted: list[float] = []

    def synchronise(self) -> None:
        Clock.now = max(Clock.now, Clock.done) + (self.interrupted.pop(0) if self.interrupted else 0.0)


class Kernel:
    """Takes ``seconds`` of the device, and ``late`` of the CPU at its first launch."""

    def __init__(self, seconds: float, late: float = 0.0) -> None:
        self.seconds, self.late = seconds, late
        self.launches = 0

    def __call__(self) -> None:
        self.launches += 1
        Clock.now += self.late if self.launches == 1 else 0.0
        Clock.done = max(Clock.now, Clock.done) + self.seconds


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sfast_core.runtime.stopwatch.time.perf_counter", lambda: Clock.now)


@pytest.mark.parametrize(("seconds", "launches"), [(2e-6, 6), (0.1e-3, 3), (0.15e-3, 2), (0.21e-3, 1), (5e-3, 1)])
def test_a_graph_has_fewer_launches_the_longer_they_take(seconds: float, launches: int) -> None:
    kernel = Kernel(seconds)
    assert Stopwatch(Device()).seconds(kernel) == pytest.approx(seconds)
    assert kernel.launches == 2 + launches + 3 * launches  # alone and to warm up, captured, in three replays


def test_what_the_cpu_takes_for_a_launch_does_not_make_a_short_graph() -> None:
    kernel = Kernel(1e-6, late=1.0)
    assert Stopwatch(Device()).seconds(kernel) == pytest.approx(1e-6)
    assert kernel.launches == 2 + 6 + 18


def test_a_graph_that_turns_out_to_be_short_is_made_again() -> None:
    """Its replay would be the CPU's time above all: 13 us were read as 118."""
    device, kernel = Device(), Kernel(13e-6)
    device.interrupted = [0.0, 1e-3]
    assert Stopwatch(device).seconds(kernel) == pytest.approx(13e-6)
    assert kernel.launches == 1 + (1 + 1 + 3) + (1 + 6 + 18)


def test_what_is_beaten_is_not_replayed_again() -> None:
    slow, close = Kernel(2.0), Kernel(1.4)
    Stopwatch(Device()).seconds(slow, fastest=1.0)
    Stopwatch(Device()).seconds(close, fastest=1.0)
    assert slow.launches == 2 + 1 + 1 and close.launches == 2 + 1 + 3


def test_a_first_replay_that_uploads_the_graph_beats_nothing() -> None:
    device, kernel = Device(), Kernel(3e-6)
    device.interrupted = [0.0, 0.0, 0.0, 100e-6]
    assert Stopwatch(device).seconds(kernel, fastest=3e-6) == pytest.approx(3e-6)


@pytest.mark.parametrize(
    "disturbed", [[50e-6, 0.0, 0.0], [0.0, 50e-6, 0.0], [0.0, 0.0, 50e-6], [50e-6, 0.0, 90e-6], [90e-6, 50e-6, 0.0]]
)
def test_of_the_replays_the_shortest_counts_whichever_it_is(disturbed: list[float]) -> None:
    """The CPU is interrupted in one or the other: the first, the last, all but one."""
    device, kernel = Device(), Kernel(3e-6)
    before = [0.0] * 2  # the launch alone
    for late in disturbed:
        before += [0.0, late]  # in front of a replay, and behind it
    device.interrupted = before
    assert Stopwatch(device).seconds(kernel) == pytest.approx(3e-6)
    assert device.interrupted == [] and kernel.launches == 2 + 6 + 18


def test_what_cannot_be_captured_takes_for_ever_and_what_fails_says_so() -> None:
    backend = Device()
    backend.failures = [RuntimeError("not permitted when stream is capturing")]
    assert Stopwatch(backend).seconds(Kernel(1.0)) == float("inf")

    def broken() -> None:
        raise ValueError("no kernel image")

    with pytest.raises(ValueError, match="no kernel image"):
        Stopwatch(backend).seconds(broken)
    assert backend.free == FakeBackend().free
