"""Brings a program's weights that aren't on the device at each call, and reports it.

Which weights these are is a property of a call, not of the trace: the same program serves a model that is on the device
as a whole, partly, or not at all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from ..capture.autocast import autocast_off
from ..capture.live import Surroundings
from ..reporting.signature_report import SignatureReport
from ..runtime.instructions import Function, run_all
from ..runtime.program import Program
from ..runtime.segments import Body, RunStretch, Stretch, interpret, run_stretch
from ..runtime.streaming.copier import copier_for
from ..runtime.streaming.kept import KeptWeights
from ..runtime.streaming.ring import Ring
from ..runtime.streaming.streamed import Streamed
from ..weights import Arriving
from .deployment import Deployment
from .kept_copies import Bringing, Given, KeptCopies, ring_share

Tensors = Sequence[torch.Tensor]
_FREE_PART = 4  # of what is free, the ring may take the part of one in so many
# of the ring, where nobody says: more are ahead of any instruction by then than copies can catch up with
_MOST_BYTES = 2 << 30
_UNKNOWN_BYTES = 1 << 30  # where it isn't known what is free


class Streams:
    """Runs one program with weights that are on the device or have to be brought there.

    Not thread-safe: its caller holds the device's lock.

    Args:
        program: what to run.
        there: where it runs.
        report: the signature's.

    Attributes:
        kept: the copies of weights that stay on the device for a sampling.
    """

    def __init__(self, program: Program, there: Deployment, report: SignatureReport) -> None:
        self._program, self._report = program, report
        self._store, self._device, self._graphs = there.store, there.device, there.graphs
        self._streamed: dict[int, Streamed] = {}  # by the id of the stretch that each runs
        self._ring: Ring | None = None
        self._own_budget: int | None = None  # for the ring, where no setting says
        self._refused: str | None = None  # why what the host computes of weights can't be captured
        self.kept = KeptCopies(program.weights, there)
        # Of the graph that was prepared last:
        self._in_graph = False  # whether it reads weights that are away
        self._brings = False  # whether it copies any of them itself; all others are kept copies
        self._functions: list[object] = []  # the host's functions that it computes, held with what they read
        self._watch: Callable[[], bool] | None = None  # whether the host still computes the same of weights
        self._pinned: Callable[[], bool] | None = None  # whether the weights still are pinned

    def compute(self, inputs: Tensors, weights: Sequence[Given], budget_bytes: int | None) -> list[torch.Tensor]:
        """The results of a program without live code, kernel by kernel.

        Args:
            inputs: the call's tensors.
            weights: the program's weights as the store has resolved them.
            budget_bytes: the most memory for weights. None: a part of what is free.

        Raises:
            RuntimeError: memory ran out.
        """
        return self._computed(inputs, weights, self.stretches(weights, budget_bytes))

    def prepared(self, weights: Sequence[Given], budget_bytes: int | None) -> Callable[[Tensors], list[torch.Tensor]]:
        """A program without live code as a function of its inputs, to be captured with what :meth:`keep` gave."""
        stretch = self.prepared_stretches(weights, budget_bytes)
        return lambda static: self._computed(static, weights, stretch)

    def _computed(self, inputs: Tensors, weights: Sequence[Given], stretch: RunStretch) -> list[torch.Tensor]:
        if stretch is run_stretch:
            return self._program(inputs, weights)
        with torch.no_grad(), autocast_off():
            parameters = self._program.parameters_for(weights)
            return interpret(self._program.body, inputs, parameters, Surroundings(), stretch=stretch)

    def stretches(self, weights: Sequence[Given], budget_bytes: int | None, in_turn: bool = True) -> RunStretch:
        """What runs a stretch of the program with these weights: :func:`run_stretch` where all are on the device.

        ``in_turn``: see :meth:`_bring`.
        """
        self._note(weights)
        if not _any_arriving(weights):
            return run_stretch

        def run(body: Body, part: Stretch, values: list[Any]) -> None:
            brought = _brought_in(body, part, weights)
            if not brought:
                return run_all(part.instructions, values)
            self._bring(self._of(body, part), brought, values, budget_bytes, in_turn)
            memory = self._ring.memory.untyped_storage().data_ptr() if self._ring is not None else 0
            for place in part.writes:  # results for later must not lie in the ring, which the next stretch overwrites
                if memory and values[place].untyped_storage().data_ptr() == memory:
                    values[place] = values[place].clone()

        return run

    def prepared_stretches(self, weights: Sequence[Given], budget_bytes: int | None) -> RunStretch:
        """As :meth:`stretches`, to be captured with what :meth:`keep` gave, and with a ring for every stretch."""
        self._note(weights)
        if not self._brings:
            return run_stretch
        moved = largest = 0
        for each in self._bringing(weights):
            schedule = each.streamed.plan(each.brought, self._budget(budget_bytes))
            largest, moved = max(largest, schedule.ring_bytes), moved + schedule.moved_bytes
        self._have_ring(largest)
        run = self.stretches(weights, budget_bytes, in_turn=False)
        self._note(weights, moved)
        return run

    def _of(self, body: Body, part: Stretch) -> Streamed:
        """What brings the weights of a stretch."""
        if id(part) not in self._streamed:
            function = Function(part.instructions, (), part.writes, body.size)
            self._streamed[id(part)] = Streamed(
                function,
                [place for place, index in body.parameters if index < len(self._program.weights)],
                self._device,
            )
        return self._streamed[id(part)]

    def _bringing(self, weights: Sequence[Given]) -> Iterator[Bringing]:
        """The stretches that read weights which have to be brought."""
        for body, part in _all_stretches(self._program.body):
            if brought := _brought_in(body, part, weights):
                yield Bringing(self._of(body, part), brought, dict(body.parameters))

    def why_not_captured(self, weights: Sequence[Given]) -> str | None:
        """Why a graph can't bring these weights, or None."""
        arriving = [weight for weight in weights if isinstance(weight, Arriving)]
        if not arriving:
            return None
        if not all(each.streamed.known for each in self._bringing(weights)):
            return "weights are brought one by one, to see what is made of them"
        if any(not weight.repeatable for weight in arriving):
            return "the host computes weights at each call"
        if self._refused is not None and any(weight.computed for weight in arriving):
            return self._refused
        if self._device.type == "cuda" and not all(
            map(_copied_beside, (source for weight in arriving for source in weight.sources))
        ):
            return "weights aren't in pinned memory, from which alone they can be copied beside what is computed"
        return None

    def keeps(self, weights: Sequence[Given]) -> bool:
        """Whether only with a graph of these some of what is away would stay on the device."""
        return _any_arriving(weights) and self._store.period() is not None

    def keep(self, weights: Sequence[Given], budget_bytes: int | None) -> list[Given]:
        """The weights to capture a graph with. Some are replaced by copies that stay on the device, as long as the host
        promises that nobody writes to the weights.
        """
        self._prepare(weights)
        given = list(weights)
        bringing = list(self._bringing(weights)) if self._in_graph else []
        self.kept.keep(given, bringing, self._whole_budget(budget_bytes) if bringing else 0, self)
        self._brings = _any_arriving(given)
        return given

    # The graph that was prepared last:

    @property
    def memory(self) -> list[Ring | KeptWeights]:
        """Memory that the graph reads, and that must not be evicted while it is replayed."""
        return [each for each in (self._ring if self._brings else None, self.kept.copies) if each is not None]

    def ready(self) -> bool:
        """Whether the memory that the graph copies weights to still is there."""
        return (not self._brings or (self._ring is not None and self._ring.alive)) and self.kept.alive

    def readable(self) -> bool:
        """Whether the graph may copy from the weights' addresses: whether they still are pinned."""
        return self._pinned is None or self._pinned()

    def same(self) -> bool:
        """Whether the host still computes of the weights what it did when the graph was prepared."""
        return (self._watch is None or self._watch()) and (
            not self._in_graph or self._store.period() == self.kept.period
        )

    def still(self, weights: Sequence[Given]) -> bool:
        """Whether the host computes of these weights, which lie where the graph reads them, what it did when the graph
        was prepared. If so, later calls are compared with what it computes now.
        """
        if (
            self.why_not_captured(weights) is not None
            or self._functions != _functions(weights)
            or not self.kept.still(weights)
        ):
            return False
        self._prepare(weights)
        return True

    def computing(self, weights: Sequence[Given]) -> bool:
        """Whether a graph of these would contain what the host computes, which may be anything."""
        return any(isinstance(weight, Arriving) and weight.computed for weight in weights)

    def refuse(self, weights: Sequence[Given], error: Exception) -> bool:
        """To be told that capturing these failed. Returns whether that may be due to what the host computes of them;
        then weights without it may still be captured.
        """
        if self.computing(weights):
            self._refused = f"what the host computes of weights can't be captured: {error}"
        return self.computing(weights)

    def release(self) -> None:
        """To be told that the graph is released."""
        self._in_graph, self._brings, self._watch, self._pinned, self._functions = False, False, None, None, []
        self.kept.release()

    # ---------------------------------------------------------------------------------------------------------------

    def _prepare(self, weights: Sequence[Given]) -> None:
        self._in_graph, self._watch = _any_arriving(weights), self._store.watch(self._program.weights)
        self._functions = _functions(weights)
        sources = [source for weight in weights if isinstance(weight, Arriving) for source in weight.sources]
        self._pinned = self._store.watch_pins(sources) if self._in_graph else None

    def _bring(
        self,
        streamed: Streamed,
        brought: dict[int, Arriving],
        values: list[Any],
        budget_bytes: int | None,
        in_turn: bool,
    ) -> None:
        """Run instructions on ``values``.

        ``in_turn``: wait for whatever else uses the device's shared memory. A capture does so itself.
        """
        if not streamed.known:
            return streamed.one_by_one(brought, values)
        schedule = streamed.plan(brought, self._budget(budget_bytes))
        ring = self._have_ring(schedule.ring_bytes)
        self._report.ring_bytes = ring.bytes
        with self._graphs.in_turn() if self._graphs is not None and in_turn else nullcontext():
            streamed.run(schedule, brought, values, ring, copier_for(self._device))

    def _have_ring(self, size: int) -> Ring:
        if self._ring is None or not self._ring.alive or self._ring.bytes < size:
            self._ring = self._graphs.ring(self._device, size) if self._graphs is not None else Ring(self._device, size)
        elif self._graphs is not None:
            self._graphs.touch(self._ring)
        self._ring.users.add(self)
        return self._ring

    def _budget(self, budget_bytes: int | None) -> int:
        """The most memory for the ring: the same as long as there is one, so that a graph finds its schedule."""
        # no more even where no copies are kept: all programs share one ring, and a larger one gains next to nothing
        whole = self._whole_budget(budget_bytes)
        return min(ring_share(whole), max(0, whole - self.kept.bytes))

    def _whole_budget(self, budget_bytes: int | None) -> int:
        """The most memory for the ring and kept copies together."""
        if budget_bytes is not None:
            return budget_bytes
        if self._own_budget is None or self._ring is None or not self._ring.alive:
            free = self._graphs.backend.free_bytes() // _FREE_PART if self._graphs is not None else _UNKNOWN_BYTES
            self._own_budget = max(min(_MOST_BYTES, free), self._graphs.ring_bytes if self._graphs is not None else 0)
        return self._own_budget

    def _note(self, weights: Sequence[Given], moved: int | None = None) -> None:
        arriving = [weight for weight in weights if isinstance(weight, Arriving)]
        self._report.streamed_bytes = sum(weight.nbytes for weight in arriving) if moved is None else moved
        self._report.ring_bytes = self._ring.bytes if arriving and self._ring is not None and self._ring.alive else 0
        self._report.kept_bytes = self.kept.bytes


def _copied_beside(source: torch.Tensor) -> bool:
    """Whether a weight can be copied while kernels run. A part of a packed weight may be on the device already."""
    return source.device.type != "cpu" or source.is_pinned()


def _functions(weights: Sequence[Given]) -> list[object]:
    """The functions that the host computes of weights, each with its weight's number."""
    return [
        (index, weight.functions)
        for index, weight in enumerate(weights)
        if isinstance(weight, Arriving) and weight.computed
    ]


def _any_arriving(weights: Sequence[Given]) -> bool:
    return any(isinstance(weight, Arriving) for weight in weights)


def _brought_in(body: Body, part: Stretch, weights: Sequence[Given]) -> dict[int, Arriving]:
    """The weights of a stretch that have to be brought, by their places in its body."""
    reads = frozenset(part.reads)
    found = {place: weights[index] for place, index in body.parameters if place in reads and index < len(weights)}
    return {place: weight for place, weight in found.items() if isinstance(weight, Arriving)}


def _all_stretches(body: Body) -> list[tuple[Body, Stretch]]:
    """The stretches of a body and of the bodies of its callbacks, each with its body."""
    own = [(body, part) for part in body.parts if isinstance(part, Stretch)]
    return own + [
        each for live in body.lives() for ways in live.bodies for inner in ways for each in _all_stretches(inner)
    ]
