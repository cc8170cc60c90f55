"""One call by several devices together: each has a program for its own rows, and the first has the results."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from typing import Any

import torch

from ..capture import GradientsRecorded, OnlyThisCall, Surroundings, tensors_of
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..programs.proof import distance_to_eager
from ..runtime.holding import Holding
from ..weights import Arriving, Bound, WeightsChanged, WeightsElsewhere
from .batch import sent
from .copy_graphs import CopyGraphs
from .links import Links
from .plan import launching_on
from .steps import Kernels, Run, Sending, in_step
from .stretch_graphs import StretchGraphs

Tensors = Sequence[torch.Tensor]


class CapturedRows(Holding):
    """The graphs of one device's program."""

    def __init__(self, run: StretchGraphs) -> None:
        super().__init__()
        self.run = run

    def release(self) -> None:
        """Give their memory back."""
        super().release()
        self.run.release()


class Rank(GraphedProgram):
    """One device's program.

    Args:
        number: which of the devices it is.
        knowing: a context in which the device's copies of weights needn't be compared with the module's again, since
            those were just found to be where this ``Bound`` says.
        rest: as those of :class:`GraphedProgram`.
    """

    def __init__(
        self, number: int, knowing: Callable[[Bound | None], AbstractContextManager[None]] | None, *rest: Any
    ) -> None:
        super().__init__(*rest)
        self.device = self._device
        self.knowing = knowing or (lambda bound: nullcontext())
        self._number = number
        self._rows: CapturedRows | None = None
        self._new: Bound | None = None  # where the weights are that the graphs read which are being captured
        self._since, self._before = 0.0, 0

    @property
    def own_captured(self) -> bool:
        """Whether this device has its graphs."""
        return self._rows is not None and self._rows.alive

    def current(self) -> bool:
        """Whether the graphs read the module's weights."""
        return self._reads_as_now() and self._copies_are_current()

    @property
    def capturing(self) -> bool:
        """Whether graphs are being captured that nobody has replayed before."""
        return self._new is not None

    def by_kernels(self, inputs: Tensors) -> Run:
        """A run kernel by kernel, which also notes the kinds of the weights."""
        weights = self._store.resolve(self.program.weights, self._device, self.program.arrivals)
        self._kinds.note(weights)
        return Kernels(self.program.body, inputs, self._parameters(weights))

    def again(self, inputs: Tensors) -> Run:
        """A run of the present graphs."""
        assert self._rows is not None and self.graphs is not None
        self.graphs.touch(self._rows)
        return self._into(self._rows, inputs)

    def begin(self, inputs: Tensors, config: CompileConfig) -> Run:
        """A run of the present graphs, of new ones, or kernel by kernel.

        Raises: as :meth:`GraphedProgram.run`.
        """
        if self._rows is not None and self._bound is not None and self._still_good(self._rows):
            return self.again(inputs)
        weights = self._weights()
        parameters = self._parameters(weights)
        self.release()
        if not self._wants_graph(config):
            return Kernels(self.program.body, inputs, parameters)
        assert self.graphs is not None
        self._new = self._store.bind(self.program.weights, weights)
        self._streams.keep(weights, config.stream_budget_bytes)
        self._since, self._before = time.perf_counter(), self.graphs.backend.free_bytes()
        self._rows = CapturedRows(StretchGraphs(self.program.body, parameters, self.graphs, self._number))
        return self._into(self._rows, inputs)

    def end(self, config: CompileConfig) -> None:
        """To be called when the run is done: graphs that it captured are kept."""
        if self._rows is not None and self._new is not None and self.graphs is not None:
            rows, graphs = self._rows, self.graphs
            rows.bytes = max(0, self._before - graphs.backend.free_bytes()) + rows.run.bytes
            graphs.adopt(lambda: (rows, None), config.graph_budget_bytes, self)
            self._has_captured(rows, self._new, time.perf_counter() - self._since)
            self._new = None
        self.idle()

    def idle(self) -> None:
        """To be called when nobody runs the graphs any more, nor reads their results."""
        if self._rows is not None and self._rows.busy and self.graphs is not None:
            self._rows.busy = False
            self.graphs.backend.leave()

    def failed(self, error: Exception) -> None:
        """To be called when the run failed."""
        if self._new is not None and isinstance(error, torch.cuda.OutOfMemoryError):
            self._out_of_memory.failed("capture", str(error))
        self.release()

    def release(self) -> None:
        """Release the graphs. A later call captures again."""
        self.idle()
        if self._rows is not None and self._rows is not self._captured:  # interrupted while it was captured
            self._rows.release()
        super().release()
        self._rows = self._new = None

    def _into(self, rows: CapturedRows, inputs: Tensors) -> Run:
        """A run of these graphs, alone in the memory that all of the device share: :meth:`idle` ends it."""
        assert self.graphs is not None
        rows.busy = True
        self.graphs.backend.enter()
        rows.run.copy_in(inputs)
        return rows.run

    def _parameters(self, weights: Sequence[torch.Tensor | Arriving]) -> list[torch.Tensor | None]:
        here = [weight for weight in weights if not isinstance(weight, Arriving)]
        if len(here) < len(weights):
            raise WeightsElsewhere("weights are brought to the device at each call")
        return [*here, *self.program.constants]


class FirstRank(Rank):
    """The first device's program, which has those of the others run along. It serves whole calls.

    Args:
        others: theirs, in order.
        links: between all of them.
        alone: the program of the whole call on this device.
        failed: told why a call was computed by that.
        rest: as those of :class:`GraphedProgram`.
    """

    def __init__(
        self,
        others: Sequence[Rank],
        links: Links,
        alone: GraphedProgram,
        failed: Callable[[Exception], None],
        *rest: Any,
    ) -> None:
        super().__init__(0, None, *rest)
        self._others = list(others)
        self._allowed: tuple[float | None, frozenset[torch.dtype]] = None, frozenset()
        self._links, self._alone, self._say_failed = links, alone, failed
        self._copies: CopyGraphs | None = None  # between the graphs that there are

    @property
    def _ranks(self) -> list[Rank]:
        return [self, *self._others]  # not kept: what refers to itself is freed late

    def prove(
        self, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype], tolerance: float | None
    ) -> Any:
        """As there; ``result``: what one device made of these inputs."""
        self._allowed = tolerance, computed_in
        results = self._by_kernels(inputs)
        self._report.distance = distance_to_eager(results, tensors_of(result), tolerance, computed_in)
        return self._outputs.build(self.program.hand_over(results), inputs)

    def run(
        self,
        inputs: list[torch.Tensor],
        config: CompileConfig,
        replayed: list[torch.Tensor] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """As there. What fails on several devices is computed by this one alone."""
        try:
            self._check(inputs)
            results = self._results(inputs, config, replayed)
        except (WeightsChanged, OnlyThisCall, GradientsRecorded):
            raise
        except Exception as error:
            for rank in self._ranks:
                rank.failed(error)
            self._say_failed(error)
            return self._alone.run(inputs, config, None, around)
        result = self._outputs.build(results, inputs)
        self._outputs.repeat(results, inputs)
        return result

    @property
    def captured(self) -> bool:
        """Whether all have their graphs."""
        return all(rank.own_captured for rank in self._ranks)

    def readable(self) -> bool:
        """Whether no graph reads memory of others."""
        return all(super(Rank, rank).readable() for rank in self._ranks)

    def replay(self, inputs: list[torch.Tensor]) -> list[torch.Tensor]:
        """What the graphs make of ``inputs``, as there."""
        runs = []
        try:
            for rank, given in zip(self._ranks, self._sent(inputs), strict=True):
                with launching_on(rank.device):
                    runs.append(rank.again(given))
            return self.program.deliver(self._through(runs))
        finally:
            for rank in self._ranks:
                rank.idle()

    def release(self) -> None:
        """Release the graphs of all."""
        self._release_copies()
        super().release()
        for rank in self._others:
            rank.release()

    def release_evicted(self) -> None:
        """Release the graphs of all where others have evicted that of one: the rest is of no use without it."""
        if any(rank._rows is not None and not rank._rows.alive for rank in self._ranks):
            self.release()

    def _results(
        self, inputs: list[torch.Tensor], config: CompileConfig, replayed: list[torch.Tensor] | None
    ) -> list[torch.Tensor]:
        calls = self._reporter.report.calls
        for rank in self._ranks:
            rank._report.calls += 1
        if replayed is not None and self._all_current():
            calls["replayed"] += 1
            return replayed
        runs = []
        with ExitStack() as known:
            for rank, given in zip(self._ranks, self._sent(inputs), strict=True):
                known.enter_context(rank.knowing(self._new or self._bound))
                with launching_on(rank.device):
                    runs.append(rank.begin(given, config))
            results = self.program.deliver(self._through(runs))
            new = any(rank.capturing for rank in self._ranks)
            for rank in self._ranks:
                with launching_on(rank.device):
                    rank.end(config)
            if new:  # graphs wait for one another otherwise than kernels that are launched one by one
                distance_to_eager(results, self.program.deliver(self._by_kernels(inputs)), *self._allowed)
        calls["replayed" if self.captured else "fused"] += 1
        return results

    def _by_kernels(self, inputs: Tensors) -> list[torch.Tensor]:
        """What all make of these inputs, kernel by kernel."""
        runs = []
        for rank, given in zip(self._ranks, self._sent(inputs), strict=True):
            with launching_on(rank.device):
                runs.append(rank.by_kernels(given))
        return self._through(runs)

    def _all_current(self) -> bool:
        for rank in self._ranks:
            with rank.knowing(self._bound):
                if not rank.current():
                    return False
        return True

    def _through(self, runs: Sequence[Run]) -> list[torch.Tensor]:
        in_step(runs, [rank.device for rank in self._ranks], self._sending(runs))
        return [runs[0].values[place] for place in runs[0].body.outputs]

    def _sending(self, runs: Sequence[Run]) -> Sending:
        """By graphs, too, between graphs: these send from and to the same places as long as they live."""
        if self.graphs is None or not all(isinstance(run, StretchGraphs) for run in runs):
            return self._links
        if any(rank.capturing for rank in self._ranks):
            self._release_copies()
        if self._copies is None:
            self._copies = CopyGraphs(self._links, self.graphs.backend)
        return self._copies

    def _release_copies(self) -> None:
        if self._copies is not None:
            self._copies.release()
            self._copies = None

    def _sent(self, inputs: Tensors) -> list[list[torch.Tensor]]:
        """A call's tensors, on each device."""
        return [[sent(tensor, self.device, rank.device) for tensor in inputs] for rank in self._ranks]
