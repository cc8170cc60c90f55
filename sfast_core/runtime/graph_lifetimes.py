"""How long a program's graphs live, and whether another one is worth capturing.

A graph reads weights where they lie. On a card that has no room for all of a workflow's models, the host brings each
model's weights anew for each picture, and they lie elsewhere each time. To capture takes as long as some ten calls by
its graph save (Flux, partly resident: 0.2 s, and 5 to 20 ms a step): with four steps a picture, graphs would only cost.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

ENOUGH_CALLS = 8  #: that a graph serves are worth its capture
_SHORT_LIVES = 2  # in a row, after which weights have to stay first


class GraphLifetimes:
    """Those of one program's graphs, one behind the other.

    Attributes:
        served: calls by the last graph.
    """

    def __init__(self) -> None:
        self.served = 0
        self._read: list[Any] | None = None  # where the last graph has read weights; None: that is counted
        self._short = 0  # lives in a row that weights ended which went elsewhere
        self._places: list[Any] = []  # of weights, at the last call without a graph
        self._stayed = 0  # calls without a graph, with weights at these places

    def begins(self, places: Sequence[Any]) -> None:
        """A graph is captured, which reads weights at ``places``."""
        self.served, self._read = 0, [*places]

    def worth_another(self, places: Sequence[Any]) -> bool:
        """Whether to capture a graph for this call, for which there is none; with weights at ``places``."""
        if self._read is not None:
            moved, self._read = self._read != [*places], None
            self._short = self._short + 1 if moved and self.served < ENOUGH_CALLS else 0
        if self._short < _SHORT_LIVES:
            return True
        self._stayed = self._stayed + 1 if self._places == [*places] else 1
        self._places = [*places]
        return self._stayed > ENOUGH_CALLS
