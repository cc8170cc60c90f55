"""The fused program of one signature: compared with the recorded call, run kernel by kernel, then captured and
replayed.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch

from .capture import GradientsRecorded, OutputSpec, Surroundings, check_writes
from .config import CompileConfig
from .programs.proof import distance_to_eager
from .programs.streams import Streams
from .reporting.reasons.graphs import NOT_CAPTURED, SHORT_LIVED
from .reporting.report import SignatureReport
from .reporting.reporter import Reporter
from .runtime.any_store import Store
from .runtime.backoff import Backoff
from .runtime.graph_lifetimes import ENOUGH_CALLS, GraphLifetimes
from .runtime.graphs import Captured, DeviceGraphs, Written, in_use
from .runtime.holding import Holding
from .runtime.program import Program
from .weights import LAYOUTS, Arriving, Bound, WeightKind, WeightsChanged

_MOVES = 2  #: graphs in a row that few calls had used before others were to be written to; the next writes to copies


class GraphedProgram:
    """A program with the weights that it reads and, from some call on, the CUDA graph that it was captured into.

    Attributes:
        ahead: whether its graph may be replayed before it is known that the call is to be computed by it.

    Not thread-safe: its caller holds the device's lock, and the weights pinned.

    Args:
        program: what to run.
        outputs: how its results make a call's.
        store: lays out the module's weights.
        device: where it runs.
        graphs: that device's. None: nothing is captured there.
        report: of the signature.
        reporter: of the module.
    """

    ahead = True

    def __init__(
        self,
        program: Program,
        outputs: OutputSpec,
        store: Store,
        device: torch.device,
        graphs: DeviceGraphs | None,
        report: SignatureReport,
        reporter: Reporter,
    ) -> None:
        self.program = program
        self.graphs = graphs
        self._outputs = outputs
        self._store = store
        self._device = device
        self._report = report
        self._reporter = reporter
        self._kinds: list[WeightKind] = []  # of the weights
        self._classes: list[type] = []  # likewise of the module's own tensors, which Python code may ask for
        self._bound: Bound | None = None  # where the graph reads them
        self._captured: Holding | None = None
        self._streams = Streams(program, store, device, graphs, report)
        self._capture_failed = False
        self._out_of_memory = Backoff()
        self._beside = [
            weight for weight in program.weights if weight.layout in LAYOUTS and LAYOUTS[weight.layout].beside
        ]
        self._made_in_graph = False  # whether the graph makes these anew
        self._lifetimes = GraphLifetimes(None if graphs is None else graphs.backend)
        self._moved = 0  # graphs in a row that served few before other tensors were to be written to
        if program.in_place:
            self.ahead = False  # what a replay has written would stay

    def prove(
        self, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype], tolerance: float | None
    ) -> Any:
        """Run on the very inputs that were recorded, compare, and build the call's result.

        Args:
            inputs: the recorded call's, as it has left them.
            result: what it returned.
            computed_in: the dtypes that it computed in, see :func:`distance_to_eager`.
            tolerance: the largest distance allowed, likewise.

        Raises:
            CaptureError: the results differ by more than that.
        """
        given, expected = self._outputs.recorded(inputs, result)
        weights = self._store.resolve(self.program.weights, self._device, self.program.arrivals)
        self._note_kinds(weights)
        self._reporter.report.adopted_bytes = self._store.adopted_bytes
        self._reporter.report.copied_bytes = self._store.copies.bytes
        self._check_written(given, weights)
        results = self._streams.compute(given, weights, None)
        self._report.distance = distance_to_eager(self._compared(results), expected, tolerance, computed_in)
        return self._outputs.first(result, expected, results, self.program.hand_over, inputs)

    def run(
        self,
        inputs: list[torch.Tensor],
        config: CompileConfig,
        replayed: list[torch.Tensor] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """A call's result for ``inputs``, by its graph where ``config`` wants one by now.

        Args:
            inputs: the call's.
            config: asked for graphs.
            replayed: what :meth:`replay` has made of these inputs, if it was asked. It is taken if the graph reads the
                module's weights.
            around: the call's own things, for code that runs live. There is none in this program.

        Raises:
            WeightsElsewhere: a weight isn't on the device.
            WeightsChanged: a weight is gone, or isn't of the shape, dtype and strides that the program was made for.
            OnlyThisCall: a weight requires grad by now, as a tensor that is no parameter may; or see
            :func:`check_writes`.
        """
        self._check(inputs)
        self._report.calls += 1
        weights: list[torch.Tensor | Arriving] = []
        if replayed is None or not self._reads_as_now() or not self._made_as_now():
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
            self._make_beside()
            with self._lifetimes.measured(by_graph=False):
                results = self.program.hand_over(self._streams.compute(inputs, weights, config.stream_budget_bytes))
            calls["fused"] += 1
        result = self._outputs.build(results, inputs)
        self._outputs.repeat(results, inputs)  # last: what failed would run once more, and do it twice
        return result

    @property
    def bound(self) -> Bound | None:
        """Where the weights were that the graph reads, when that was found to be so last;
        None where there is no graph.
        """
        return self._bound

    @property
    def captured(self) -> bool:
        """Whether there is a graph."""
        return self._captured is not None and self._captured.alive and self._streams.ready()

    @property
    def uncapturable(self) -> bool:
        """Whether no graph can hold what it does, on a device that has graphs."""
        return self.graphs is not None and (self._capture_failed or self.program.capturable is not None)

    def readable(self) -> bool:
        """Whether the graph reads no memory of others."""
        return self._bound is not None and self._bound.readable() and self._streams.readable()

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the graph makes of ``inputs``.

        It has to be :attr:`captured` and :meth:`readable`; whether the weights that it reads are the module's is
        :meth:`run`'s to ask.
        """
        assert isinstance(self._captured, Captured) and self.graphs is not None
        with self._lifetimes.measured(by_graph=True):
            return self.graphs.replay(self._captured, inputs, self.program.deliver)

    def release(self) -> None:
        """Release the graph. A later call captures again."""
        if self._captured is not None and self.graphs is not None:
            self.graphs.release(self._captured)
        self._captured = self._bound = None
        self._streams.release()
        self._report.graph_bytes = 0

    def release_evicted(self) -> None:
        """Let go of the graph if others have evicted it."""
        if self._captured is not None and not self._captured.alive:
            self.release()

    def _compared(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        """Those that the recorded call has, too."""
        return results

    def _elsewhere(self, inputs: list[torch.Tensor]) -> bool:
        """Whether the graph writes to other tensors than a call's.

        Where that is so again and again, the next one writes to copies.
        """
        if not isinstance(self._captured, Captured) or self._captured.reads(inputs):
            return False
        self._moved = self._moved + 1 if self._lifetimes.served < ENOUGH_CALLS else 0
        self._lifetimes.ended_by_inputs()
        return True

    def _check_written(self, inputs: list[torch.Tensor], weights: Sequence[torch.Tensor | Arriving]) -> None:
        """Whether what the program writes to is nothing else, too. Raises as :meth:`run` says."""
        if self.program.in_place:
            check_writes(
                self.program.in_place.values(),
                inputs,
                [weight for weight in weights if isinstance(weight, torch.Tensor)],
            )

    def _check(self, inputs: list[torch.Tensor]) -> None:
        """Whether the program may serve this call. Raises as :meth:`run` says."""
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
        """The weights, laid out for the program and of the kinds that it was made for, or to be brought so."""
        try:
            weights = self._store.resolve(self.program.weights, self._device, self.program.arrivals)
        except ReferenceError as error:
            raise WeightsChanged(str(error)) from error
        report = self._reporter.report
        # laid out again after they were given back
        report.adopted_bytes = report.adopted_bytes or self._store.adopted_bytes
        report.copied_bytes = self._store.copies.bytes
        for source, weight, kind in zip(self.program.weights, weights, self._kinds, strict=True):
            if (now := WeightKind.of(weight)) != kind:
                raise WeightsChanged(f"the weight {source} is {now} now, it was {kind}")
        for cls, then in zip(self._classes_now(), self._classes, strict=True):
            if cls is not then:
                raise WeightsChanged(f"a weight is a {cls.__name__} now, it was a {then.__name__}")
        if list(self._registered_now()) != self._registered:
            raise WeightsChanged("a parameter is a buffer now, or a buffer a parameter")
        return weights

    def _note_kinds(self, weights: list[torch.Tensor]) -> None:
        self._kinds, self._classes = list(map(WeightKind.of, weights)), list(self._classes_now())
        self._registered = list(self._registered_now())

    def _registered_now(self) -> Iterator[bool]:
        """Whether a weight is among its module's parameters."""
        return (
            ref.table() is ref.module().__dict__.get("_parameters")
            for source in self.program.weights
            for ref in source.refs
        )

    def _classes_now(self) -> Iterator[type]:
        """A plain tensor in a parameter's place, as ``functional_call`` puts it there for a call, is none of another
        class.
        """
        classes = (type(ref.tensor()) for source in self.program.weights for ref in source.refs)
        return (torch.Tensor if cls is torch.nn.Parameter else cls for cls in classes)

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
        if self._lifetimes.worth_another([weight.data_ptr() for weight in weights]) or self._streams.keeps(weights):
            return True
        self._report.not_captured_because = SHORT_LIVED(calls=ENOUGH_CALLS)
        return False

    def _has_captured(self, captured: Holding, bound: Bound, seconds: float) -> None:
        """Note the graph that there is from now on: what it reads, and how long it took to capture."""
        self._captured, self._bound = captured, bound
        self._lifetimes.begins(seconds)
        self._report.captures += 1
        self._report.graph_bytes = captured.bytes
        self._report.capture_s += seconds
        self._report.not_captured_because = None
        self._reporter.ready(self._report)

    def _reads_as_now(self) -> bool:
        """Whether the graph has read the module's weights, and the host does with them what it did then."""
        return self._bound is not None and self._bound.current() and self._streams.same()

    def _still_good(self, captured: Holding) -> bool:
        """Whether the graph is there and each weight lies where the graph reads it."""
        assert self._bound is not None
        if not captured.alive or not self._streams.ready() or not self._made_as_now():
            return False
        if self._bound.valid() and self._streams.readable() and self._streams.same():
            return True
        weights = self._weights()  # lays replaced weights out anew
        bound = self._store.bind(self.program.weights, weights)
        same = bound.pointers == self._bound.pointers and self._streams.still(weights)
        same = same and (not self._made_in_graph or bound.sources == self._bound.sources)
        if same:  # else the graph reads what is the module's no more, until another one is captured
            self._bound = bound
        return same

    def _making(
        self, run: Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]
    ) -> Callable[[Sequence[torch.Tensor]], Sequence[torch.Tensor]]:
        """``run``, to be captured: with what lies beside weights made in front of it, where that is to be done at each
        call.
        """
        self._made_in_graph = bool(self._beside) and self._store.copies.at_each_call
        if not self._made_in_graph:
            return run

        def made_first(static: Sequence[torch.Tensor]) -> Sequence[torch.Tensor]:
            self._store.copies.make_again(self._beside)
            return run(static)

        return made_first

    def _made_as_now(self) -> bool:
        """Whether the graph makes what lies beside weights, where that is to be done at each call, and doesn't where it
        isn't.
        """
        return not self._beside or self._made_in_graph == self._store.copies.at_each_call

    def _make_beside(self) -> bool:
        """Make it, where that is to be done at each call. Returns whether it is."""
        if not self._beside or not self._store.copies.at_each_call:
            return False
        if self.graphs is not None:
            self.graphs.backend.enter()
        self._store.copies.make_again(self._beside)
        return True

    def _capture(
        self, inputs: list[torch.Tensor], weights: list[torch.Tensor | Arriving], config: CompileConfig
    ) -> None:
        """Capture a graph, in the place of one that reads weights where they no longer are."""
        assert self.graphs is not None
        self._reporter.announce("capturing")
        program, start = self.program, time.perf_counter()
        bound = self._store.bind(program.weights, weights)
        try:
            given = self._streams.keep(weights, config.stream_budget_bytes)
            run = self._making(self._streams.prepared(inputs, given, config.stream_budget_bytes))
            known = not self._streams.computing(weights)
            written = Written(program.in_place, there=self._moved < _MOVES)
            # or the budget, or what runs out of memory, would take it for this very graph
            with in_use(self._streams.memory):
                captured = self.graphs.capture(
                    inputs, run, config.graph_budget_bytes, self, self._captured, known, written
                )
        except Exception as error:
            self.release()
            self._has_failed(error, weights)
            return
        self._has_captured(captured, bound, time.perf_counter() - start)

    def _has_failed(self, error: Exception, weights: Sequence[torch.Tensor | Arriving]) -> None:
        """Note why there is no graph: capturing one that reads these weights failed."""
        if isinstance(error, torch.cuda.OutOfMemoryError):  # every other graph is released by now
            self._out_of_memory.failed("capture", str(error))
            because = f" for now, memory ran out while it was captured: {error}"
        else:
            self._capture_failed = not self._streams.refuse(weights, error)
            self._report.not_captured_because = NOT_CAPTURED(error=error)
            because = f": {self._report.not_captured_because}"
        self._reporter.say(f"runs without a CUDA graph{because}", logging.WARNING)
