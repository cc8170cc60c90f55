"""How long jobs take, from those that were done: the middle of what was seen, so that one odd job changes nothing."""

from __future__ import annotations

import json
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping
from statistics import median
from typing import Any

from .workflow import Needs

_KEPT = 30  #: latest times of a kind
RUN_S = 10.0  #: until the first job is done
LOAD_S = 20.0  #: a model that was never loaded yet


class Estimates:
    """Seconds by what a job needs: with everything warm, and what loading its models adds."""

    def __init__(self) -> None:
        self._warm: dict[Needs, deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._all: dict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))
        self._cold: dict[tuple[str, ...], deque[float]] = defaultdict(lambda: deque(maxlen=_KEPT))

    def learn(self, needs: Needs, seconds: float, cold: bool) -> None:
        """A job is done. ``cold``: its models had to be loaded."""
        if cold:
            self._cold[needs.models].append(seconds)
        else:
            self._warm[needs].append(seconds)
            self._all[needs.models].append(seconds)

    def learn_all(self, rows: Iterable[Mapping[str, Any]]) -> None:
        """What :func:`.shown.timings` gives."""
        for row in rows:
            needs = Needs(**{name: tuple(values) for name, values in json.loads(row["needs"]).items()})
            self.learn(needs, row["seconds"], bool(row["cold"]))

    def run(self, needs: Needs) -> float:
        """Seconds with everything warm; of its models at any size where this very job was never seen."""
        for seen in (self._warm.get(needs), self._all.get(needs.models)):
            if seen:
                return median(seen)
        return RUN_S

    def load(self, needs: Needs) -> float:
        """Seconds more where its models aren't loaded."""
        seen = self._cold.get(needs.models)
        return max(0.0, median(seen) - self.run(needs)) if seen else LOAD_S
