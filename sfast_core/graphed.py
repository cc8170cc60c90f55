"""The fused program of one signature with its CUDA graph: proved, run kernel by kernel, then captured and replayed."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from .capture import GradientsRecorded, OutputSpec, Surroundings, check_writes
from .config import CompileConfig
from .programs.copies_of_weights import CopiesOfWeights
from .programs.deployment import Deployment
from .programs.proof import distance_to_eager
from .programs.streams import Streams
from .reporting.reasons.graphs import NOT_CAPTURED, SHORT_LIVED
from .reporting.signature_report import SignatureReport
from .runtime.backoff import Backoff
from .runtime.captured import Captured, Written
from .runtime.graph_lifetimes import ENOUGH_CALLS, GraphLifetimes
from .runtime.holding import Holding, in_use
from .runtime.program import Program
from .runtime.rehearsal import CapturedBefore, Rehearsed, Shown, lie_as_captured, rehearsed
from .weights import Arriving, Bound, WeightKinds, WeightsChanged

# A program that writes into its inputs (a cache) has a graph for those very tensors. Where this many graphs in a row
# served few calls before one came with other tensors, the next graph writes into copies.
_MOVES = 2


class GraphedProgram:
    """A program, the weights that it reads and, from some call on, the CUDA graph that it was captured into.

    Not thread-safe: its caller holds the device's lock, and has pinned the weights.

    Attributes:
        ahead: whether its graph may be replayed before the guard has been checked, and its results be dropped.

    Args:
        program: what to run.
        outputs: builds a call's result from the program's tensors.
        there: where it runs.
        report: the signature's report.
    """

    ahead = True

    def __init__(self, program: Program, outputs: OutputSpec, there: Deployment, report: SignatureReport) -> None:
        self.program = program
        self.graphs = there.graphs
        self._outputs, self._there, self._report = outputs, there, report
        self._store, self._device, self._reporter = there.store, there.device, there.reporter
        self._kinds = WeightKinds(program.weights)
        self._bound: Bound | None = None  # where the graph reads the weights
        self._captured: Holding | None = None
        self._streams = Streams(program, there, report)
        self._capture_failed = False
        self._out_of_memory = Backoff()
        self._weight_copies = CopiesOfWeights(program, there)
        self._lifetimes = GraphLifetimes(there.backend)
        self._rehearsed: Rehearsed | None = None  # what the proof has shown of a graph
        self._moved = 0  # graphs in a row that served few calls, see _MOVES
        if program.in_place:
            self.ahead = False  # a replay whose results are dropped has written all the same

    def prove(
        self, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype], tolerance: float | None
    ) -> Any:
        """Run on the inputs of the recorded call, compare the results with that call's, and build what it returns.

        Args:
            inputs: the recorded call's tensors, as it has left them.
            result: what it returned.
            computed_in: the dtypes that it computed in, see :func:`distance_to_eager`.
            tolerance: the largest distance allowed, see there.

        Raises:
            CaptureError: the results differ by more than that.
        """
        given, expected, weights = self._recorded(inputs, result)
        self._check_written(given, weights)
        results = self._proving(lambda: self._streams.compute(given, weights, None), given, weights)
        self._report.distance = distance_to_eager(self._compared(results), expected, tolerance, computed_in)
        return self._outputs.first(result, expected, results, self.program.hand_over, inputs)

    def run(
        self,
        inputs: list[torch.Tensor],
        config: CompileConfig,
        replayed: list[torch.Tensor] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """A call's result for ``inputs``: by the graph, a new one if ``config`` wants that now, or kernel by kernel.

        Args:
            inputs: the call's tensors.
            config: says whether and when to capture.
            replayed: the results of :meth:`replay` for these inputs, where that ran ahead of the checks. They are used
                if the graph turns out to read the module's present weights.
            around: the call's own options and objects, for code that runs live. This class has no live code.

        Raises:
            WeightsElsewhere: a weight isn't on the device.
            WeightsChanged: a weight is gone, or isn't of the shape, dtype and strides that the program was made for.
            OnlyThisCall: this call alone has to run as it was: gradients of a weight are wanted, or see
                :func:`check_writes`.
        """
        self._check(inputs)
        self._report.calls += 1
        start = self._lifetimes.call_begins()
        weights: list[torch.Tensor | Arriving] = []
        if replayed is None or not self._reads_as_now() or not self._copies_are_current():
            replayed = None
            if self._captured is None or self._elsewhere(inputs) or not self._still_good(self._captured):
                weights = self._weights()
                self._check_written(inputs, weights)
                if self._wants_graph(config) and self._may_capture(weights):
                    self._capture(inputs, weights, config)
                else:
                    self.release()
        calls = self._reporter.report.calls
        if self._captured is not None:
            results = self.replay(inputs) if replayed is None else replayed
            self._lifetimes.served += 1
            calls["replayed"] += 1
        else:
            self._weight_copies.make()
            results = self.program.hand_over(self._streams.compute(inputs, weights, config.stream_budget_bytes))
            self._lifetimes.call_ends(start, by_graph=False)
            calls["fused"] += 1
        result = self._outputs.build(results, inputs)
        self._outputs.repeat(results, inputs)  # effects last: a call that fails before runs again as a whole
        return result

    @property
    def bound(self) -> Bound | None:
        """Where the graph's weights were when they were last found to be in place. None where there is no graph."""
        return self._bound

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return self._captured is not None and self._captured.alive and self._streams.ready()

    @property
    def uncapturable(self) -> bool:
        """Whether the device has graphs, but none can hold what this program does."""
        return self.graphs is not None and (self._capture_failed or self.program.capturable is not None)

    def readable(self) -> bool:
        """Whether all memory that the graph reads is still the weights'."""
        return self._bound is not None and self._bound.readable() and self._streams.readable()

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """The graph's results for ``inputs``.

        Allowed while it is :attr:`captured` and :meth:`readable`. It doesn't check whether the module has other weights
        by now: :meth:`run` does.
        """
        assert isinstance(self._captured, Captured) and self.graphs is not None
        start = self._lifetimes.call_begins()
        results = self.graphs.replay(self._captured, inputs, self.program.deliver)
        self._lifetimes.call_ends(start, by_graph=True)
        return results

    def release(self) -> None:
        """Release the graph. A later call captures again."""
        if self._captured is not None and self.graphs is not None:
            self.graphs.release(self._captured)
        self._captured = self._bound = None
        self._streams.release()
        self._report.graph_bytes = 0

    def release_evicted(self) -> None:
        """Forget the graph if somebody else has evicted it."""
        if self._captured is not None and not self._captured.alive:
            self.release()

    def _recorded(self, inputs: list[torch.Tensor], result: Any) -> tuple[list[torch.Tensor], list[torch.Tensor], Any]:
        """The recorded call's inputs, its results as tensors, and the weights, whose kinds are noted."""
        given, expected = self._outputs.recorded(inputs, result)
        weights = self._store.resolve(self.program.weights, self._device, self.program.arrivals)
        self._kinds.note(weights)
        self._reporter.report.adopted_bytes = self._store.adopted_bytes
        self._reporter.report.copied_bytes = self._store.copies.bytes
        return given, expected, weights

    def _proving(
        self,
        run: Callable[[], list[torch.Tensor]],
        given: Sequence[torch.Tensor],
        weights: Sequence[torch.Tensor | Arriving],
    ) -> list[torch.Tensor]:
        """The results of ``run()``, which shows whether the program can be captured, too."""
        if self.graphs is None or self.program.capturable is not None or not lie_as_captured(given, weights):
            return run()
        results, self._rehearsed = rehearsed(run, self.graphs.backend.unused_bytes)
        return results

    def _shown(self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor | Arriving]) -> Shown:
        """What the proof, or an earlier graph, has shown of a graph that is captured with these."""
        as_proved = not self._weight_copies.by_graph and lie_as_captured(inputs, weights)
        if as_proved and self._rehearsed is not None and self._rehearsed.serves():
            return self._rehearsed
        return None if self._captured is None or self._streams.computing(weights) else CapturedBefore()

    def _compared(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Those of the program's results that the recorded call has, too."""
        return results

    def _elsewhere(self, inputs: list[torch.Tensor]) -> bool:
        """Whether the graph writes into other tensors than this call's, and so has to be captured anew."""
        if not isinstance(self._captured, Captured) or self._captured.reads(inputs):
            return False
        self._moved = self._moved + 1 if self._lifetimes.served < ENOUGH_CALLS else 0
        self._lifetimes.ended_by_inputs()
        return True

    def _check_written(self, inputs: list[torch.Tensor], weights: Sequence[torch.Tensor | Arriving]) -> None:
        """Check that tensors which the program writes into don't overlap others. Raises as :meth:`run` says."""
        if self.program.in_place:
            check_writes(
                self.program.in_place.values(),
                inputs,
                [weight for weight in weights if isinstance(weight, torch.Tensor)],
            )

    def _check(self, inputs: list[torch.Tensor]) -> None:
        """Check that the program may serve this call. Raises as :meth:`run` says."""
        gradients, writes = torch.is_grad_enabled(), self._outputs.writes
        if not (gradients or writes.indices):
            return
        try:
            weights = [ref.tensor() for source in self.program.weights for ref in source.refs]
        except ReferenceError as error:
            raise WeightsChanged(str(error)) from error
        if gradients and any(weight.requires_grad for weight in weights):
            raise GradientsRecorded
        writes.check(inputs, weights)

    def _weights(self) -> list[torch.Tensor | Arriving]:
        """The weights as the program reads them, or placeholders for those that have to be copied to the device.

        Raises:
            WeightsChanged: one is gone, or isn't what the program was made for.
        """
        try:
            weights = self._store.resolve(self.program.weights, self._device, self.program.arrivals)
        except ReferenceError as error:
            raise WeightsChanged(str(error)) from error
        report = self._reporter.report
        # zero after the weights were given back: they are laid out again now
        report.adopted_bytes = report.adopted_bytes or self._store.adopted_bytes
        report.copied_bytes = self._store.copies.bytes
        self._kinds.check(weights)
        return weights

    def _wants_graph(self, config: CompileConfig) -> bool:
        return (
            config.cuda_graphs
            and self.graphs is not None
            and self.program.capturable is None
            and not self._capture_failed
            and self._out_of_memory.reason("capture") is None
            and self._report.calls >= config.capture_after
        )

    def _may_capture(self, weights: Sequence[torch.Tensor | Arriving]) -> bool:
        """Whether a graph can read these weights, and is likely to live for long enough."""
        if self._streams.why_not_captured(weights) is not None:
            return False
        if self._streams.keeps(weights) or self._lifetimes.worth_another([weight.data_ptr() for weight in weights]):
            return True
        self._report.not_captured_because = SHORT_LIVED(calls=ENOUGH_CALLS)
        return False

    def _has_captured(self, captured: Holding, bound: Bound, seconds: float) -> None:
        """Keep and report a new graph, which reads the weights where ``bound`` says and took so long to capture."""
        self._captured, self._bound = captured, bound
        self._lifetimes.begins(seconds)
        self._report.captures += 1
        self._report.graph_bytes = captured.bytes
        self._report.capture_s += seconds
        self._report.not_captured_because = None

    def _reads_as_now(self) -> bool:
        """Whether what the graph has just read are the module's present weights, handled by the host as at capture."""
        return self._bound is not None and self._bound.current() and self._streams.same()

    def _still_good(self, captured: Holding) -> bool:
        """Whether the graph is there, and each weight where it reads it; replaced ones are laid out anew for that."""
        assert self._bound is not None
        if not captured.alive or not self._streams.ready() or not self._copies_are_current():
            return False
        if self._bound.valid() and self._streams.readable() and self._streams.same():
            return True
        weights = self._weights()
        bound = self._store.bind(self.program.weights, weights)
        same = bound.pointers == self._bound.pointers and self._streams.still(weights)
        same = same and (not self._weight_copies.by_graph or bound.sources == self._bound.sources)
        if same:
            self._bound = bound
        return same

    def _copies_are_current(self) -> bool:
        """Whether the graph reads copies of weights that are made as often as they have to be."""
        return self._weight_copies.made_as_captured()

    def _capture(
        self, inputs: list[torch.Tensor], weights: list[torch.Tensor | Arriving], config: CompileConfig
    ) -> None:
        """Capture a graph, or replace one that reads weights where they no longer are."""
        assert self.graphs is not None
        self._reporter.announce("capturing")
        program, start = self.program, time.perf_counter()
        bound = self._store.bind(program.weights, weights)
        try:
            given = self._streams.keep(weights, config.stream_budget_bytes)
            run = self._weight_copies.captured_with(self._streams.prepared(given, config.stream_budget_bytes))
            written = Written(program.in_place, there=self._moved < _MOVES)
            # else that memory might be evicted to make room for the very graph that reads it
            with in_use(self._streams.memory):
                captured = self.graphs.capture(
                    inputs,
                    run,
                    config.graph_budget_bytes,
                    self,
                    self._captured,
                    written,
                    self._shown(inputs, weights),
                )
        except Exception as error:
            self.release()
            self._has_failed(error, weights)
            return
        self._has_captured(captured, bound, time.perf_counter() - start)
        self._reporter.ready(self._report)

    def _has_failed(self, error: Exception, weights: Sequence[torch.Tensor | Arriving]) -> None:
        """Say why capturing a graph that reads these weights failed: for now where memory ran out, else for good."""
        if isinstance(error, torch.cuda.OutOfMemoryError):  # every other graph is released by now
            self._out_of_memory.failed("capture", str(error))
            because = f" for now, memory ran out while it was captured: {error}"
        else:
            self._capture_failed = not self._streams.refuse(weights, error)
            self._report.not_captured_because = NOT_CAPTURED(error=error)
            because = f": {self._report.not_captured_because}"
        self._reporter.say(f"runs without a CUDA graph{because}", logging.WARNING)
