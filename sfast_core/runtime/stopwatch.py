"""How long a launch takes, from replays of a graph of several: launches one by one would time the CPU.

Thirty launches of each kernel took 2.1 s at SDXL's first 1536x1536 (H100), so a graph has fewer of those that take
long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .backend import Backend

_MOST_LAUNCHES = 6  #: in a graph
_GRAPH_S = 0.3e-3  #: what a graph is to take, where that many launches take longer
_REPLAYS = 3
_BEATEN = 1.5  #: times slower than the fastest so far: no further replay
_UPLOAD_S = 150e-6  #: what a graph's first replay takes the CPU and the driver, at the most; one takes 50
log = logging.getLogger("fast_compile")


class Stopwatch:
    """Times launches on the device of ``backend``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def seconds(self, launch: Callable[[], object], fastest: float = float("inf")) -> float:
        """Seconds a ``launch``: infinite where it can't be captured, less exact far beyond ``fastest``.

        Raises:
            Exception: the launch itself failed.
        """
        once = max(self._on_device(launch), _GRAPH_S / _MOST_LAUNCHES)
        launches = max(1, round(_GRAPH_S / once))
        while True:
            replay = self._replayed(launch, launches, _BEATEN * fastest * launches + _UPLOAD_S)
            if launches == _MOST_LAUNCHES or replay > _GRAPH_S / 2:
                return replay / launches
            launches = _MOST_LAUNCHES  # waiting for the first one took long for another reason

    def _on_device(self, launch: Callable[[], object]) -> float:
        """About how long one launch keeps the device busy: what is left to wait for when the CPU is done with it.

        With the CPU's part, which is up to 300 us and more where a thread is interrupted, 13 us were taken for 118
        (1.3% of SD1.5's times, H100).
        """
        self._backend.synchronise()
        launch()
        launched = time.perf_counter()
        self._backend.synchronise()
        return time.perf_counter() - launched

    def _replayed(self, launch: Callable[[], object], launches: int, enough: float) -> float:
        """Seconds a replay of so many launches: the shortest, or the first one above ``enough``.

        Infinite where it can't be captured.
        """

        def run() -> None:
            for _ in range(launches):
                launch()

        try:
            graph = self._backend.capture(run, alone=True, warm_up=launch)
        except Exception as error:
            log.debug("can't be captured: %s", error)
            return float("inf")
        shortest = float("inf")
        for _ in range(_REPLAYS):
            self._backend.synchronise()
            start = time.perf_counter()
            graph.replay()
            self._backend.synchronise()
            shortest = min(shortest, time.perf_counter() - start)
            if shortest > enough:
                break
        graph.release()
        return shortest
