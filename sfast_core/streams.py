"""A program's weights that aren't on the device, on their way there at each call: what the runtime needs to bring them, and what the report says.

Which they are is a property of a call, not of the trace: the same program serves a model that is all there, partly, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .capture.autocast import autocast_off
from .report import SignatureReport
from .runtime.any_store import Store
from .runtime.graphs import DeviceGraphs
from .runtime.instructions import Function
from .runtime.program import Program
from .runtime.streaming.copier import copier_for
from .runtime.streaming.streamed import Given, Streamed
from .weights import Arriving, WeightsElsewhere

Tensors = Sequence[torch.Tensor]


class Streams:
    """Runs one program with what its store gives it, be it there or to be brought. Not thread-safe: its caller holds the device's lock.

    Args:
        program: what to run.
        store: gives its weights, and knows what the host does to them.
        device: where it runs.
        graphs: that device's, among which the ring is.
        report: of the signature.
    """

    def __init__(self, program: Program, store: Store, device: torch.device, graphs: DeviceGraphs | None, report: SignatureReport) -> None:
        self._program, self._store, self._device, self._graphs, self._report = program, store, device, graphs, report
        self._streamed: Streamed | None = None
        self._in_graph = False  # whether the graph that was prepared last brings weights
        self._watch: Callable[[], bool] | None = None  # likewise what tells that the host does with them what it did then

    def compute(self, inputs: Tensors, weights: Sequence[Given], budget_bytes: int | None) -> list[torch.Tensor]:
        """The program's results, kernel by kernel.

        Args:
            inputs: the call's.
            weights: the program's, as the store has resolved them.
            budget_bytes: what the ring may take; None: a part of what is free.

        Raises:
            WeightsElsewhere: they can't be brought for this program.
            RuntimeError: memory ran out.
        """
        self._note(weights)
        if not _any_arriving(weights):
            return self._program(inputs, weights)  # type: ignore[arg-type]
        streamed = self._of(inputs)
        with torch.no_grad(), autocast_off():
            if not streamed.known(weights):
                return streamed.one_by_one(inputs, weights, self._program.constants)
            streamed.prepare(weights, budget_bytes)
            self._note(weights)
            if self._graphs is None:
                return streamed.run(inputs, weights, self._program.constants)
            self._graphs.backend.enter()
            try:
                return streamed.run(inputs, weights, self._program.constants)
            finally:
                self._graphs.backend.leave()

    def why_not_captured(self, weights: Sequence[Given]) -> str | None:
        """Why this call can't be captured into a graph that brings these weights, or None."""
        arriving = [weight for weight in weights if isinstance(weight, Arriving)]
        if not arriving:
            return None
        if self._streamed is None or not self._streamed.known(weights):
            return "weights are brought one by one, to see what is made of them"
        if any(weight.computed for weight in arriving):
            return "the host computes weights at each call"
        if self._device.type == "cuda" and not all(source.is_pinned() for weight in arriving for source in weight.sources):
            return "weights aren't in pinned memory, from which alone they can be copied beside what is computed"
        return None

    def prepared(self, inputs: Tensors, weights: Sequence[Given], budget_bytes: int | None) -> Callable[[Tensors], Tensors]:
        """The program as a function of its inputs, to be captured with these weights."""
        self._in_graph, self._watch = _any_arriving(weights), self._store.watch(self._program.weights)
        if not self._in_graph:
            self._note(weights)
            return lambda static: self._program(static, weights)  # type: ignore[arg-type]
        streamed = self._of(inputs)
        streamed.prepare(weights, budget_bytes)
        self._note(weights)

        def run(static: Tensors) -> list[torch.Tensor]:
            with torch.no_grad(), autocast_off():
                return streamed.run(static, weights, self._program.constants)

        return run

    # -- of the graph that was prepared last -----------------------------------------------------------------------------

    def ready(self) -> bool:
        """Whether the memory is there that it brings weights to."""
        return not self._in_graph or (self._streamed is not None and self._streamed.ready())

    def readable(self) -> bool:
        """Whether it may copy from where it does."""
        return not self._in_graph or (self._streamed is not None and self._streamed.pinned())

    def same(self) -> bool:
        """Whether the host does to weights what it did when it was prepared."""
        return self._watch is None or self._watch()

    def still(self, weights: Sequence[Given]) -> bool:
        """Whether it does for these, which lie where those did that it was prepared for. Then what the host does is what it does from now on."""
        if self.why_not_captured(weights) is not None:
            return False
        self._watch = self._store.watch(self._program.weights)
        return True

    def release(self) -> None:
        """It is gone."""
        self._in_graph, self._watch = False, None

    # --------------------------------------------------------------------------------------------------------------------

    def _of(self, inputs: Tensors) -> Streamed:
        if self._streamed is None:
            function = self._program.run
            if not isinstance(function, Function):
                raise WeightsElsewhere("a part of the model isn't on its device, and code of others runs inside of it")
            self._streamed = Streamed(function, len(inputs), len(self._program.weights), self._device, self._graphs, copier_for)
        return self._streamed

    def _note(self, weights: Sequence[Given]) -> None:
        arriving = [weight for weight in weights if isinstance(weight, Arriving)]
        schedule = self._streamed.schedule if self._streamed is not None and arriving else None
        self._report.streamed_bytes = sum(weight.nbytes for weight in arriving) if schedule is None else schedule.moved_bytes
        self._report.ring_bytes = self._streamed.ring_bytes if self._streamed is not None and arriving else 0


def _any_arriving(weights: Sequence[Given]) -> bool:
    return any(isinstance(weight, Arriving) for weight in weights)
