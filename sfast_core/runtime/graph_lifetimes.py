"""How long a program's graphs live, and whether another one is worth capturing.

On a card that has no room for all of a workflow's models, the host brings each model's weights anew for each picture:
they lie elsewhere then, or what others need takes the graph's memory. To capture takes as long as some ten calls by its
graph save (Flux, partly resident: 0.2 s, and 5 to 20 ms a step): with four steps a picture, graphs would only cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENOUGH_CALLS = 8  #: that a graph serves are worth its capture
_SHORT_LIVES = 2  # in a row, after which so many calls have to come first that find weights where they were,
_MOST_DOUBLINGS = 2  # and twice as many after each further one, so many times


class GraphLifetimes:
    """Those of one program's graphs, one behind the other.

    Attributes:
        served: calls by the last graph.
    """

    def __init__(self) -> None:
        self.served = 0
        self._judged = True  # the last graph is counted, or there was none
        self._short = 0  # lives in a row
        self._places: list[Any] = []  # of weights, at the last call without a graph
        self._stayed = 0  # calls without a graph, with weights at these places

    def begins(self) -> None:
        """A graph is captured."""
        self.served, self._judged = 0, False

    def ended_by_inputs(self) -> None:
        """The graph is left for what a call hands it, which has its own remedy."""
        self._judged = True

    def worth_another(self, places: Sequence[Any]) -> bool:
        """Whether to capture a graph for this call, for which there is none; with weights at ``places``."""
        if not self._judged:
            self._short = self._short + 1 if self.served < ENOUGH_CALLS else 0
            self._judged, self._stayed = True, 0
        if self._short < _SHORT_LIVES:
            return True
        self._stayed = self._stayed + 1 if self._places == [*places] else 1
        self._places = [*places]
        return self._stayed > ENOUGH_CALLS << min(self._short - _SHORT_LIVES, _MOST_DOUBLINGS)
