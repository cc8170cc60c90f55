"""A program with live code (other people's Python that runs at each call) between its segments.

It is proved without running that code a second time, run segment by segment, and captured during such a run.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from typing import Any

import torch

from ..capture import AnotherStructure, Surroundings, autocast_off
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..reporting.reason import reason_of
from ..reporting.reasons.records import FINISHED
from ..runtime.captured_segments import CapturedSegments, Evicted
from ..runtime.holding import in_use
from ..runtime.segments import Body, Live, RunStretch, interpret, run_live
from ..weights import Arriving, WeightsChanged, WeightsElsewhere
from .proof import distance_to_eager


class Unfinished(Exception):
    """The program can't go on, but live code has run already: the original forward has to finish the call without
    running that code again. The message is the reason.

    Attributes:
        another: live code returned or did something of another structure, so the program isn't for calls like this one.
        ours: something of ours failed.
    """

    def __init__(self, reason: str, another: bool, ours: bool = False) -> None:
        super().__init__(reason)
        self.another, self.ours = another, ours


class SegmentedProgram(GraphedProgram):
    """A :class:`GraphedProgram` that is cut into segments.

    Args:
        first: the options and objects of the recorded call, for a run of live code in :meth:`prove`.
        rest: as those of :class:`GraphedProgram`.
    """

    _segments: CapturedSegments | None = None
    # the weights and constants, only while segments are captured: what live code leaves behind may refer to this
    # object, and must not keep weights alive
    _given: Sequence[torch.Tensor | None] | None = None

    def __init__(self, first: Surroundings, *rest: Any) -> None:
        super().__init__(*rest)
        self._first = first
        self._live = tuple([live.call.where for live in self.program.body.all_lives() if live.call is not None])

    def prove(
        self, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype], tolerance: float | None
    ) -> Any:
        """Run the segments on the recorded inputs, with what live code returned in the recorded call, and compare both
        the results and what live code would have been handed.

        Where all live code may run twice it then does, so that this call returns the very bits that later calls will.
        """
        around, self._first = self._first, Surroundings()  # of that call alone
        given, expected, weights = self._recorded(inputs, result)
        parameters, stretch = self.program.parameters_for(weights), self._streams.stretches(weights, None)
        comparison = _Comparison(parameters, stretch)
        try:
            results = comparison.run(self.program.body, given)
            got, theirs = [*results, *comparison.got], [*expected, *comparison.expected]
            self._report.distance = distance_to_eager(got, theirs, tolerance, computed_in)
        finally:
            for live in self.program.body.all_lives():
                if live.call is not None:
                    live.call.forget_recorded()
        if all(live.call is not None and live.call.repeatable for live in self.program.body.all_lives()):
            around.settle, around.inputs = lambda: self._store.lay_again(self._device), inputs
            with contextlib.suppress(AnotherStructure), torch.no_grad(), autocast_off():
                results = interpret(self.program.body, given, parameters, around, stretch=stretch)
            around.close()
        return self._outputs.first(result, expected, results, self.program.deliver, inputs)

    def _ask(self, index: int) -> torch.Tensor | None:
        """The weight or constant of this index, as the graphs read it."""
        if self._given is not None:
            return self._given[index]
        program = self.program
        if index >= len(program.weights):
            return program.constants[index - len(program.weights)]
        (weight,) = self._store.resolve([program.weights[index]], self._device, program.arrivals[index : index + 1])
        return self._streams.kept.copy_of(index, weight) if isinstance(weight, Arriving) else weight

    @property
    def captured(self) -> bool:
        """Whether there are graphs that aren't running: they are where live code calls the module itself."""
        return self._segments is not None and self._segments.alive and not self._segments.busy and self._streams.ready()

    def run(
        self,
        inputs: list[torch.Tensor],
        config: CompileConfig,
        replayed: list[torch.Tensor] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """As :meth:`GraphedProgram.run`. ``replayed`` isn't None where the first segment has run for these inputs.

        Raises:
            Unfinished: live code has run, and the program can't go on.
        """
        self._check(inputs)
        around = around or Surroundings()
        around.settle, around.inputs = lambda: self._store.lay_again(self._device), inputs
        around.live = self._live
        self._report.calls += 1
        capture = False
        made = self._weight_copies.make()  # a first segment that was replayed ahead has read what was there before
        ahead = replayed is not None and not made and self._reads_as_now()
        if not ahead and (self._segments is None or not self._still_good_segments(self._segments)):
            capture = self._given is None and self._wants_graph(config) and self._may_capture(self._weights())
            if not capture:
                self.release()
        start = time.perf_counter()
        try:
            results = self._run(inputs, around, capture, config, ahead)
        except AnotherStructure as error:
            around.another = around.set_live is None
            raise Unfinished(FINISHED(what=error), another=True) from None
        except (WeightsChanged, WeightsElsewhere) as error:
            if around.ran == []:  # no live code has run yet, so the call can start over
                raise
            raise Unfinished(reason_of(error), another=False) from error
        except Exception as error:
            ours = id(error) != around.raised and not isinstance(error, (Evicted, torch.cuda.OutOfMemoryError))
            raise Unfinished(f"{type(error).__name__}: {error}", another=False, ours=ours) from error
        finally:
            self._report.live_s += around.seconds
            self._report.segmented_s += time.perf_counter() - start
        result = self._outputs.build(results, inputs)
        self._outputs.repeat(results, inputs)
        return result

    def _run(
        self, inputs: list[torch.Tensor], around: Surroundings, capture: bool, config: CompileConfig, ahead: bool
    ) -> list[torch.Tensor]:
        calls, deliver = self._reporter.report.calls, self.program.deliver
        if not capture and (self._segments is None or self.graphs is None or self._segments.busy):
            start, weights = self._lifetimes.call_begins(), self._weights()
            stretch = self._streams.stretches(weights, config.stream_budget_bytes)
            with torch.no_grad(), autocast_off():
                parameters = self.program.parameters_for(weights)
                results = deliver(interpret(self.program.body, inputs, parameters, around, stretch=stretch))
            self._lifetimes.call_ends(start, by_graph=False)
            calls["fused"] += 1
            return results
        if capture:
            results = self._capture_segments(inputs, around, config)
        else:
            assert self._segments is not None and self.graphs is not None
            self.graphs.touch(self._segments)
            start = self._lifetimes.call_begins()
            with in_use(self._streams.memory):  # live code may need memory, and the host then has graphs evicted
                results = deliver(self._segments.run(inputs, around, self._ask, ahead))
            self._lifetimes.call_ends(start, by_graph=True)
        self._lifetimes.served += 1
        calls["replayed"] += 1
        return results

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """Replay the first segment, which comes before all live code. It has no results yet: the list is empty."""
        assert self._segments is not None
        with torch.no_grad(), autocast_off():
            self._segments.body.copy_in(inputs)
            self._segments.body.replay_first()
        return []

    def release(self) -> None:
        """Release the graphs. A later call captures again."""
        super().release()
        self._segments = None

    def _copies_are_current(self) -> bool:
        """Always: the weights' copies are made before the segments run, and by none of their graphs."""
        return True

    def _still_good_segments(self, segments: CapturedSegments) -> bool:
        return self._bound is not None and self._still_good(segments)

    def _capture_segments(
        self, inputs: list[torch.Tensor], around: Surroundings, config: CompileConfig
    ) -> list[torch.Tensor]:
        graphs = self.graphs
        assert graphs is not None
        self._reporter.announce("capturing")
        program, start = self.program, time.perf_counter()
        weights = self._weights()
        bound = self._store.bind(program.weights, weights)
        given = self._streams.keep(weights, config.stream_budget_bytes)
        stretch = self._streams.prepared_stretches(given, config.stream_budget_bytes)
        segments = CapturedSegments(self.program.body, graphs, stretch)

        def make() -> tuple[CapturedSegments, list[torch.Tensor]]:
            return segments, program.deliver(segments.capture(inputs, around, self._ask))

        self._given = self.program.parameters_for(given)
        try:
            with in_use(self._streams.memory):
                _, results = graphs.adopt(make, config.graph_budget_bytes, self, self._captured)
        except BaseException as error:
            if self._captured is not None:
                self.release()
            segments.release()
            if isinstance(error, RuntimeError) and id(error) != around.raised and not isinstance(error, Evicted):
                self._has_failed(error, weights)
            raise
        finally:
            self._given = None
        self._segments = segments
        self._has_captured(segments, bound, time.perf_counter() - start - around.seconds)
        self._reporter.ready(self._report)
        return results


class _Comparison:
    """Runs a cut program without its live code, and collects what that would be handed (``got``) beside what it was
    handed in the recorded call (``expected``).
    """

    def __init__(self, parameters: list[torch.Tensor | None], stretch: RunStretch) -> None:
        self.got: list[torch.Tensor] = []
        self.expected: list[torch.Tensor] = []
        self._parameters, self._stretch = parameters, stretch

    def run(self, body: Body, arguments: list[torch.Tensor]) -> list[torch.Tensor]:
        with torch.no_grad(), autocast_off():
            return interpret(body, arguments, self._parameters, Surroundings(), self._live, self._stretch)

    def _live(self, part: Live, values: list[Any]) -> None:
        call = part.call
        if call is None:
            return run_live(part, values, self._parameters, Surroundings(), self._stretch)
        for place, expected in zip(part.handed, call.handed, strict=True):
            if expected is not None:
                self._compare(values[place], expected)
        for number, ways in enumerate(call.callbacks):
            for way, recalled in enumerate(ways):
                body = part.bodies[number][way]
                outputs = self.run(body, [*recalled.given, *(values[part.outer[at]] for at in body.outer)])
                for output, expected in zip(outputs, recalled.expected, strict=True):
                    self._compare(output, expected)
        for place, index in part.results:
            assert index is not None
            values[place] = call.returned[index]

    def _compare(self, got: torch.Tensor, expected: torch.Tensor) -> None:
        self.got.append(got)
        self.expected.append(expected)
