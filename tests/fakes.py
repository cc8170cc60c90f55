"""A backend that captures nothing and counts everything: for the runtime and the engine on a CPU."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator


class FakeReplay:
    """Replays by running again; once released it must not be used."""

    def __init__(self, run: Callable[[], None], backend: FakeBackend) -> None:
        self._run: Callable[[], None] | None = run
        self._backend = backend

    def replay(self) -> None:
        assert self._run is not None, "a graph was replayed after its release"
        self._backend.events.append("replay")
        self._run()

    def release(self) -> None:
        assert self._run is not None, "a graph was released twice"
        self._run = None
        self._backend.free += self._backend.cost


class FakeBackend:
    """As the CUDA one: a warm-up, a capture, and memory that a graph takes.

    Attributes:
        free: bytes that are free. Each capture takes ``cost`` of them.
        failures: what the next captures raise, or None for one that works.
        events: what happened, in order.
    """

    def __init__(self, free: int = 10_000_000, cost: int = 1000) -> None:
        self.free = free
        self.cost = cost
        self.keeps_results = False
        self.failures: list[BaseException | None] = []
        self.events: list[str] = []

    def capture(
        self, run: Callable[[], None], alone: bool = False, warm_up: Callable[[], object] | None = None, room: int = 0
    ) -> FakeReplay:
        failure = self.failures.pop(0) if self.failures else None
        self.events.append("capture" if failure is None else "failed capture")
        (warm_up or run)()
        if failure is not None:
            raise failure
        run()
        self.free -= self.cost
        return FakeReplay(run, self)

    @contextlib.contextmanager
    def scratch(self) -> Iterator[None]:
        self.events.append("scratch")
        yield
        self.events.append("no scratch")

    def enter(self) -> None:
        self.events.append("enter")

    def leave(self) -> None:
        self.events.append("leave")

    def free_bytes(self) -> int:
        return self.free

    def unused_bytes(self) -> int:
        return 0

    def synchronise(self) -> None:
        self.events.append("synchronise")

    def mark(self) -> None:
        """It has no clock."""

    def seconds_between(self, start: None, end: None) -> None:
        """Not known."""

    def trim(self) -> None:
        self.events.append("trim")
