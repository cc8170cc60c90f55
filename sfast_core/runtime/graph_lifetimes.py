"""How long a program's graphs live, and whether another one is worth capturing.

On a card that has no room for all of a workflow's models, the host brings each model's weights anew for each picture:
they lie elsewhere then, or what others need takes the graph's memory. Whether the next graph brings in what its capture
costs depends on the model: partly resident on an H200, capturing takes Flux 0.2 s and saves 0.03 s a step, which is
bound by the copies; it takes SD1.5 as long and saves 0.11 s a step, which is bound by the CPU.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .backend import Backend

ENOUGH_CALLS = 8  #: that a graph serves are worth its capture, where nothing was measured
_SHORT_LIVES = 2  # in a row, after which a graph has to be worth it,
_MOST_DOUBLINGS = 2  # and weights have to stay twice as long after each further one, so many times


class GraphLifetimes:
    """Those of one program's graphs, one behind the other.

    Args:
        backend: tells how long calls take on the device. None: nothing is measured.

    Attributes:
        served: calls by the last graph.
    """

    def __init__(self, backend: Backend | None = None) -> None:
        self.served = 0
        self._backend = backend
        self._judged = True  # the last graph is counted, or there was none
        self._short = 0  # lives in a row
        self._expected = 0  # calls that the next graph would serve, if it lives as long as the last
        self._capture_s = 0.0  # what the last one took
        self._measured: dict[bool, tuple[Any, Any]] = {}  # by whether by a graph: a call's beginning and end
        self._call_s: dict[bool, float] = {}  # likewise: the shortest call
        self._places: list[Any] = []  # of weights, at the last call without a graph
        self._stayed = 0  # calls without a graph, with weights at these places

    def begins(self, capture_s: float) -> None:
        """A graph is captured, which took so long."""
        self.served, self._judged, self._capture_s = 0, False, capture_s

    def ended_by_inputs(self) -> None:
        """The graph is left for what a call hands it, which has its own remedy."""
        self._judged = True

    def call_begins(self) -> Any:
        """A mark for :meth:`call_ends`; None where it doesn't matter how long calls take."""
        return None if self._backend is None or not self._short else self._backend.mark()

    def call_ends(self, start: Any, by_graph: bool) -> None:
        """A call that began with this mark has given the device all that it has to do."""
        if start is not None and self._backend is not None:
            self._note(by_graph)
            self._measured[by_graph] = start, self._backend.mark()

    def worth_another(self, places: Sequence[Any]) -> bool:
        """Whether to capture a graph for this call, for which there is none; with weights at ``places``."""
        if not self._judged:
            self._short = self._short + 1 if self.served < ENOUGH_CALLS else 0
            self._expected, self._judged, self._stayed, self._places = self.served, True, 0, [*places]
        if self._short < _SHORT_LIVES:
            return True
        if self._places != [*places]:
            self._expected = max(self._expected, self._stayed)
            self._places, self._stayed = [*places], 0
        self._stayed += 1
        doublings = min(self._short - _SHORT_LIVES, _MOST_DOUBLINGS)
        if (saved_s := self._saved_s()) is None:
            return self._stayed > ENOUGH_CALLS << doublings
        return saved_s * max(self._expected, (self._stayed - 1) >> doublings) > self._capture_s

    def _saved_s(self) -> float | None:
        """Seconds that a graph saves at each call; None: not known yet."""
        for by_graph in (True, False):
            self._note(by_graph)
        return self._call_s[False] - self._call_s[True] if len(self._call_s) == 2 else None

    def _note(self, by_graph: bool) -> None:
        """Note how long the last call took, if the device is done with it."""
        if self._backend is None or by_graph not in self._measured:
            return
        seconds = self._backend.seconds_between(*self._measured.pop(by_graph))
        if seconds is not None:
            self._call_s[by_graph] = min(seconds, self._call_s.get(by_graph, seconds))
