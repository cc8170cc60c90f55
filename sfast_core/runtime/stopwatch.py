"""How long a launch takes, from replays of a graph of several: launches one by one would time the CPU.

Thirty launches of each kernel took 2.1 s at SDXL's first 1536x1536 (H100), so a graph has fewer of those that take long.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

from .graphs import Backend

_MOST_LAUNCHES = 10  #: in a graph
_GRAPH_S = 0.5e-3  #: what a graph is to take, where that many launches take longer
_CPU_S = 150e-6  #: a launch that takes less may be a short one, and the CPU slow
_REPLAYS = 3
_BEATEN = 1.5  #: times slower than the fastest so far: no further replay. The first one uploads the graph, some 50 us
log = logging.getLogger("fast_compile")


class Stopwatch:
    """Times launches on the device of ``backend``."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def seconds(self, launch: Callable[[], object], fastest: float = float("inf")) -> float:
        """Seconds a ``launch``. Infinite where it can't be captured; less exact where it takes much more than ``fastest``.

        Raises:
            Exception: the launch itself failed.
        """
        launch()  # what is loaded at the first one is not timed
        once = self._timed(launch)
        launches = _MOST_LAUNCHES if once < _CPU_S else max(1, round(_GRAPH_S / once))
        while True:
            replay = self._replayed(launch, launches, _BEATEN * fastest * launches)
            if launches == _MOST_LAUNCHES or replay > _GRAPH_S / 10:
                return replay / launches
            launches = _MOST_LAUNCHES  # it was the CPU that took long

    def _replayed(self, launch: Callable[[], object], launches: int, enough: float) -> float:
        """Seconds a replay of so many launches: the shortest, or the first one above ``enough``. Infinite where it can't be captured."""

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
            shortest = min(shortest, self._timed(graph.replay))
            if shortest > enough:
                break
        graph.release()
        return shortest

    def _timed(self, run: Callable[[], object]) -> float:
        self._backend.synchronise()
        start = time.perf_counter()
        run()
        self._backend.synchronise()
        return time.perf_counter() - start
