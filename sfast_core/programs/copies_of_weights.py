"""Who makes the copies of weights anew that a program reads: its graph, or each call in front of the program."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from ..runtime.program import Program
from ..weights import LAYOUTS
from .deployment import Deployment

Run = Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]


class CopiesOfWeights:
    """The copies in another form (8 bits) that one program reads beside the module's own weights.

    Args:
        program: what reads them.
        there: where it runs. Its store has them for all programs, and knows whether each call has to make them anew.

    Attributes:
        by_graph: whether the graph that was captured last makes them anew at each replay.
    """

    def __init__(self, program: Program, there: Deployment) -> None:
        self._store, self._backend = there.store, there.backend
        self._weights = [
            weight for weight in program.weights if weight.layout in LAYOUTS and LAYOUTS[weight.layout].beside
        ]
        self.by_graph = False

    def captured_with(self, run: Run) -> Run:
        """``run``, to be captured; behind the making of the copies, where each call has to make them anew."""
        self.by_graph = bool(self._weights) and self._store.copies.at_each_call
        if not self.by_graph:
            return run

        def made_first(static: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            self._store.copies.make_again(self._weights)
            return run(static)

        return made_first

    def made_as_captured(self) -> bool:
        """Whether the graph makes the copies anew if and only if each call has to."""
        return not self._weights or self.by_graph == self._store.copies.at_each_call

    def make(self) -> bool:
        """Make the copies anew where each call has to. Returns whether it was done."""
        if not self._weights or not self._store.copies.at_each_call:
            return False
        if self._backend is not None:
            self._backend.enter()
        self._store.copies.make_again(self._weights)
        return True
