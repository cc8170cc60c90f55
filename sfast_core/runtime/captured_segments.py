"""A cut graph whose stretches are captured into a CUDA graph each, with live code running between their replays.

Values that pass from one part to another lie in memory of their own, outside the graphs' pool: nothing in the pool has
to last while live code runs, so that code may replay other graphs. Weights are looked up when they are captured or
handed to live code, and never held here: whoever changes weights in place checks whether others hold them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch

from ..capture.autocast import autocast_off
from ..capture.live import Surroundings, fill
from .backend import Replayable
from .captured import static_like
from .graphs import DeviceGraphs
from .holding import Holding, in_use
from .rehearsal import rehearsing
from .segments import Body, Live, RunStretch, Stretch, results_of, run_stretch

Tensors = Sequence[torch.Tensor]
#: Gives a weight or constant of the program by its index; None for a weight that has to be brought.
Ask = Callable[[int], "torch.Tensor | None"]


class Evicted(RuntimeError):
    """The graphs were evicted while live code ran between them."""


class CapturedBody:
    """One cut graph. Its first run captures it, stretch by stretch, and computes that call's results.

    Args:
        body: the graph.
        graphs: the device's graphs.
        owner: what all bodies of the program belong to, with those of callbacks.
        stretch: runs a stretch while it is captured.
    """

    def __init__(
        self, body: Body, graphs: DeviceGraphs, owner: CapturedSegments, stretch: RunStretch = run_stretch
    ) -> None:
        self._body, self._graphs, self._owner, self._run_stretch = body, graphs, owner, stretch
        self._values: list[Any] = [None] * body.size  # those that pass between parts, and the inputs
        self._stretches: dict[int, Replayable] = {}  # by the part's index
        self._inner: dict[tuple[int, int, int], CapturedBody] = {}  # of callbacks: by part, number and way
        self._parameters = dict(body.parameters)
        self._inputs = body.given[: len(body.given) - len(body.outer)]
        self._outer = {place: index for index, place in enumerate(body.given[len(self._inputs) :])}
        self._captured = False

    @property
    def bytes(self) -> int:
        """The size of its values outside the pool."""
        own = set(self._inputs).union(
            *(part.writes if isinstance(part, Stretch) else {at for at, _ in part.results} for part in self._body.parts)
        )
        held = sum(value.nbytes for place in own if isinstance(value := self._values[place], torch.Tensor))
        return held + sum(inner.bytes for inner in self._inner.values())

    def run(
        self, inputs: Tensors, around: Surroundings, ask: Ask, outer: Tensors = (), replayed: bool = False
    ) -> list[torch.Tensor]:
        """Results for ``inputs``, in memory that the next run overwrites.

        Args:
            inputs: its own.
            around: the call's own options and objects.
            ask: gives the program's weights and constants as the graphs read them.
            outer: the values that it reads from the graph around it, at their addresses.
            replayed: whether the first part has run for these inputs already.
        """

        def value(place: int) -> Any:
            if place in self._parameters:
                return ask(self._parameters[place])
            return outer[self._outer[place]] if place in self._outer else self._values[place]

        if not replayed:
            self.copy_in(inputs)
        for index, part in enumerate(self._body.parts):
            if isinstance(part, Stretch):
                if not (replayed and index == 0):
                    self._stretch(index, part, value)
            else:
                self._live(index, part, around, ask, value)
        self._captured = True
        return [value(place) for place in self._body.outputs]

    def copy_in(self, inputs: Tensors) -> None:
        """Put a call's inputs where the graphs read them."""
        if not self._captured and self._inputs and self._values[self._inputs[0]] is None:
            with torch.inference_mode(False):
                for place, tensor in zip(self._inputs, inputs, strict=True):
                    self._values[place] = static_like(tensor)
        for place, tensor in zip(self._inputs, inputs, strict=True):
            self._values[place].copy_(tensor)

    def replay_first(self) -> None:
        """Replay the first stretch, if it comes before all live code."""
        part = self._body.parts[0]
        if isinstance(part, Stretch):
            self._stretch(0, part, self._values.__getitem__)

    def release(self) -> None:
        """Give the graphs' memory back."""
        for replayable in self._stretches.values():
            replayable.release()
        for inner in self._inner.values():
            inner.release()
        self._stretches, self._inner, self._values = {}, {}, [None] * self._body.size

    def _stretch(self, index: int, part: Stretch, value: Callable[[int], Any]) -> None:
        self._owner.check_alive()
        if not part.instructions or not part.writes:
            return
        replayable = self._stretches.get(index)
        if replayable is None:
            self._stretches[index] = self._capture(part, value)
        else:
            with self._graphs.in_turn():
                replayable.replay()

    def _capture(self, part: Stretch, value: Callable[[int], Any]) -> Replayable:
        values = self._values

        def run() -> None:
            with torch.no_grad(), autocast_off():
                local: list[Any] = [None] * len(values)
                for place in part.reads:
                    local[place] = value(place)
                self._run_stretch(self._body, part, local)
                for place in part.writes:
                    if values[place] is None:  # the warm-up makes them, outside the capture
                        with torch.inference_mode(False):
                            values[place] = torch.empty_like(local[place])
                    values[place].copy_(local[place])

        return self._graphs.backend.capture(run, warm_up=rehearsing(run))

    def _live(self, index: int, part: Live, around: Surroundings, ask: Ask, value: Callable[[int], Any]) -> None:
        values = self._values

        def body_of(number: int, way: int) -> Callable[[Tensors], Tensors]:
            body = part.bodies[number][way]
            inner = self._inner.get((index, number, way))
            if inner is None:
                inner = CapturedBody(body, self._graphs, self._owner, self._run_stretch)
                self._inner[index, number, way] = inner
            found, outer = inner, [value(part.outer[at]) for at in body.outer]
            return lambda given: found.run(given, around, ask, outer)

        given = list(values)
        for place in part.handed:
            given[place] = value(place)
        results = results_of(part, given, body_of, around)
        self._owner.check_alive()
        for (place, _), form in zip(part.results, part.forms, strict=True):
            if values[place] is None:
                values[place] = form.empty()
        fill([values[place] for place, _ in part.results], results)


class CapturedSegments(Holding):
    """A program of several segments on one device."""

    def __init__(self, body: Body, graphs: DeviceGraphs, stretch: RunStretch = run_stretch) -> None:
        super().__init__()
        self.body = CapturedBody(body, graphs, self, stretch)
        self._graphs = graphs

    def capture(self, inputs: Tensors, around: Surroundings, ask: Ask) -> list[torch.Tensor]:
        """Run once, and capture each stretch on the way. The next run overwrites the results."""
        before = self._graphs.backend.free_bytes()
        results = self.run(inputs, around, ask)
        self.bytes = max(0, before - self._graphs.backend.free_bytes()) + self.body.bytes
        return results

    def run(self, inputs: Tensors, around: Surroundings, ask: Ask, replayed: bool = False) -> list[torch.Tensor]:
        """The results for ``inputs``, which the next run overwrites. See :meth:`CapturedBody.run`."""
        with in_use([self]):
            return self.body.run(inputs, around, ask, replayed=replayed)

    def check_alive(self) -> None:
        """Raise :class:`Evicted` where the graphs are gone."""
        if not self.alive:
            raise Evicted("the graphs were released while live code ran between them")

    def release(self) -> None:
        """Give the graphs' memory back."""
        super().release()
        self.body.release()
