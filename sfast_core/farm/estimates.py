"""Estimates how long jobs take, by the median of those that were done, so that one odd job changes nothing."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from .workflow import Needs, needs_in

_KEPT = 30  #: so many of the latest times are kept for each kind of job
RUN_S = 10.0  #: the estimate for a job until one was done
LOAD_S = 20.0  #: the estimate for loading models that were never loaded


class Estimates:
    """Seconds by what a job needs: with its models loaded, and for loading them."""

    def __init__(self) -> None:
        self._warm: dict[Needs, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._all: dict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._cold: dict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def learn(self, needs: Needs, seconds: float, cold: bool) -> None:
        """Note how long a job took. ``cold``: its models had to be loaded."""
        if cold:
            self._cold[needs.models].append(seconds)
        else:
            self._warm[needs].append(seconds)
            self._all[needs.models].append(seconds)

    def learn_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """Note the times that :func:`.shown.timings` gives."""
        for row in rows:
            self.learn(needs_in(row["needs"]), row["seconds"], bool(row["cold"]))

    def run(self, needs: Needs) -> float:
        """Seconds with the models loaded; if no job with these very needs was seen, those of its models at any size."""
        for seen in (self._warm.get(needs), self._all.get(needs.models)):
            if seen:
                return median(seen)
        return RUN_S

    def load(self, needs: Needs) -> float:
        """Seconds for loading its models."""
        seen = self._cold.get(needs.models)
        return max(0.0, median(seen) - self.run(needs)) if seen else LOAD_S
