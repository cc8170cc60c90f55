"""What a recorded call leaves when it is over: its trace, or why there is none, and how long that holds."""

from __future__ import annotations

import time
import weakref
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch

from ..reporting.reason import reason_of, told
from ..reporting.reasons.records import CHANGES_MODULE, CHANGES_SETTING, RANDOM, RANDOM_MEANWHILE, SAYS, UNLIKE
from ..weights import WeightRef
from .call_tensors import CallTensors, nowhere
from .errors import CaptureError, GradientsRecorded
from .externals import Externals
from .guards import EffectsFinder, Guard, KeptByOthers, KeptState, Lead, Leads, NotRepeated, Reader, ReadSet, RestsOn
from .guards.containers import NewContainers
from .live import LiveCall, Surroundings
from .live.mentioned import mentioned_by, set_by
from .random_state import RandomState
from .recorder import Recorder
from .result import OutputSpec, split_result, tensors_of
from .torch_state import State, changed_setting, torch_state


@dataclass(frozen=True)
class Trace:
    """A recorded call.

    Attributes:
        graph: placeholders for the signature's tensors, then for the weights (``meta["source"]``). It is to run with
            autocast off.
        outputs: how its results make the call's.
        seconds: what recording took, with the call.
        computed_in: the dtypes that autocast was to compute in, and those of quantised weights.
        kept: what holds the tensors that the graph reads where they were found, beside arguments and the module.
        live: its calls of code that runs live, in order; with their callbacks' graphs.
        others: the functions of others that were recorded with the model's code: their names, by their kinds.
        as_they_lie: weights that the forward asks how they lie in memory: they are not to be laid out anew.
        places: where functions of others lead to tensors in ``kept``, and these.
    """

    graph: torch.fx.Graph
    outputs: OutputSpec
    seconds: float
    computed_in: frozenset[torch.dtype] = frozenset()
    kept: tuple[torch.nn.Module, ...] = ()
    live: tuple[LiveCall, ...] = ()
    others: Mapping[Any, str] = field(default_factory=dict)
    as_they_lie: frozenset[WeightRef] = frozenset()
    places: Mapping[Lead, weakref.ref[torch.Tensor]] = field(default_factory=dict)


@dataclass(frozen=True)
class Untraceable:
    """Why a call left no trace.

    Attributes:
        passing: another call of the same signature may leave one.
        changing: it changes what it reads.
        closed: it computed with tensors of these classes in a way that can't be recorded.
        inside: the modules inside which that happened, the innermost first: one of them may run live.
        readers: who read what the call changes, or can't be compared: a function of theirs may run live, or a module.
        cut: something will, so that the next call is to be recorded without delay.
        others: the kinds of functions of others, recorded with the model's code, inside which that happened.
        state: what it changes of what such functions keep, as it was before.
    """

    reason: str
    passing: bool = False
    changing: bool = False
    closed: frozenset[type] = frozenset()
    inside: tuple[torch.nn.Module, ...] = ()
    readers: tuple[Reader, ...] = ()
    cut: bool = False
    others: tuple[Any, ...] = ()
    state: KeptState = frozenset()


class RecordedCall:
    """A recorded call that is over.

    Args:
        result: of the call.
        inputs: the signature's tensors.
        recorder: that has recorded it.
        reads: what it has read besides its arguments.
        around: what it brought along for code that runs live.
        returns_each: the graph is to return each tensor of the result, whatever it is.

    Attributes:
        result: what the caller is to get.
    """

    def __init__(
        self,
        result: Any,
        inputs: list[torch.Tensor],
        recorder: Recorder,
        reads: ReadSet,
        around: Surroundings,
        returns_each: bool,
    ) -> None:
        reads.finish()
        self.result = result
        self._inputs, self._recorder, self._reads, self._around = inputs, recorder, reads, around
        self._leads = Leads(reads, {} if around.taken_in is None else around.taken_in.there)
        self._externals = Externals(reads, self._leads, around.placed)
        self._containers = NewContainers(self._externals.containers)
        kept_at = partial(_kept_at, recorder, self._externals)
        self._tensors = (
            CallTensors((), nowhere, returns_each)
            if returns_each
            else CallTensors(inputs, kept_at, kept_in=recorder.kept_in, from_live=recorder.comes_from_live)
        )
        self._without: Collection[tuple[int, Any]] = ()  # places that no guard is to compare

    def trace(self, random: RandomState, settings: State, start: float) -> tuple[Trace | Untraceable, Guard]:
        """The trace, or why there is none, and how long that holds.

        Args:
            random: the random numbers' state before the call.
            settings: PyTorch's then.
            start: when it began.
        """
        self._give_back_kept()
        self._recorder.decisions.finish()
        why = (
            self._why_outside(random, settings)
            or self._why_told_by_id()
            or self._why_result()
            or self._why_said()
            or self._why_gradients()
            or self._why_effects()
            or self._why_kept()
        )
        if why is not None:
            return why, Guard(self._reads, without=self._without)
        recorder = self._recorder
        recorder.check_beside(self._externals.watches)
        graph = recorder.finish(list(self._tensors.computed), self._externals)
        recorder.input_writes.finish(self._inputs)
        for asked in recorder.told:
            self._reads.told(asked.now, asked.answer, asked.name)
        guard = self._guard()
        if graph is None:
            return self._why_no_graph(), guard
        root = self._reads.root()
        # in a way that is not among the effects: a second call would read it
        effects = self._effects
        known = effects.returning | self._leads.keys(effects.written) if effects.returning else ()
        if root is not None and (left := guard.leaving(known).changed(root)):
            return Untraceable(CHANGES_MODULE(what=left), changing=True), guard
        return self._traced(graph, start), guard

    def _give_back_kept(self) -> None:
        """What live code keeps, and the model returns, is one and the same at each call: a copy of ours would be
        another.
        """
        for kept in self._recorder.kept_by_live:
            if (own := kept.put_into(self.result)) is not self.result:
                self.result = own
                self._recorder.refuse(f"the result holds a {type(kept.own).__name__} that {kept.by} keeps")
        try:
            returned = tensors_of(self.result)
        except RecursionError:  # it holds itself: there is no trace of it
            return
        if (call := self._recorder.taken_and_kept(returned)) is not None:
            self._recorder.refuse(f"what {call.where.name} keeps is written to, or returned")

    # -- why there is no trace --------------------------------------------------------------------------------------

    def _why_outside(self, random: RandomState, settings: State) -> Untraceable | None:
        moved = random.moved()
        if self._recorder.draws or (moved and self._recorder.drawn):
            return Untraceable(RANDOM(), inside=tuple(self._recorder.drew))
        # by this call, or meanwhile by another thread: then not the next time
        if moved or (random.foreign_moved() if self._reads.chance else random.numpy_moved()):
            return Untraceable(RANDOM_MEANWHILE(), passing=True)
        setting = changed_setting(torch_state(), settings)
        return Untraceable(CHANGES_SETTING(setting=setting)) if setting else None

    def _why_told_by_id(self) -> Untraceable | None:
        """By which objects of a call's own are, as a key to what is kept of them, say: another call has others. Nothing
        of it can run live, which is handed copies.
        """
        for what, ref in self._reads.told_by_id:
            tensor = None if ref is None else ref()
            if tensor is None or self._recorder.computes(tensor) or any(tensor is each for each in self._inputs):
                return Untraceable(UNLIKE(name=what))
        if self._recorder.handed_back and self._reads.tells_apart:
            return Untraceable("the model asks which of its tensors code that runs live returns")
        return None

    def _why_result(self) -> Untraceable | None:
        reads = self._reads
        try:
            if reads.refused is not None:
                raise CaptureError(reads.refused)
            self._spec = split_result(self.result, self._tensors, self._containers, reads.callers_own)
        except CaptureError as error:
            if reads.refused is None:
                return Untraceable(reason_of(error))
            readers = (reads.refused_in,) if reads.refused_in else ()
            return Untraceable(reason_of(error), inside=tuple(self._recorder.at_work), readers=readers)
        return None

    def _why_said(self) -> Untraceable | None:
        said = self._reads.said.heard()
        return _changing(SAYS(name=said[0].by), tuple(each.reader for each in said)) if said else None

    def _why_gradients(self) -> Untraceable | None:
        """By a tensor that is no parameter, or because the forward turns gradients on itself."""
        on = torch.is_grad_enabled()
        if any(tensor.requires_grad and (on or not tensor.is_leaf) for tensor in self._tensors.computed):
            return Untraceable(reason_of(GradientsRecorded()), passing=True)
        return None

    def _why_effects(self) -> Untraceable | None:
        reads, recorder = self._reads, self._recorder
        try:
            functions = self._live_functions()
            mentioned = partial(mentioned_by, functions) if functions else None
            given, by_host = self._around.given, recorder.kept_by_host
            self._effects = EffectsFinder(
                reads,
                recorder.reads,
                self._tensors,
                self._containers,
                mentioned,
                given,
                by_host,
                KeptByOthers(self._leads, frozenset(map(id, self._around.placed.values())), self._around.state),
            ).find()
        except NotRepeated as change:
            self._without = change.places
            tables = {table for table, _ in change.places}
            owners = tuple(
                module
                for module in root_modules(reads)
                if not tables.isdisjoint(map(id, (module.__dict__, module._buffers, module._parameters)))
            )
            readers = tuple(reader for place in change.places if (reader := reads.readers.of.get(place)) is not None)
            return replace(_changing(CHANGES_MODULE(what=change), readers, owners), state=change.state)
        if self._effects and (name := reads.filled()) is not None:
            return Untraceable(CHANGES_MODULE(what=name), passing=True)  # it may be what leaves them
        self._effects.hand_on(self._around.options)  # the call has left those that only a recording can read
        return None

    def _why_kept(self) -> Untraceable | None:
        kept = self._externals.also_kept(self._inputs, self._recorder.table)
        if kept is not None:
            if self._around.taken_in is not None:
                self._around.taken_in.look_for(self._externals.missed)
                self._around.taken_in.look_for(self._externals.ambiguous, found=False)
            return Untraceable(f"a tensor that is passed is also {kept}, which the call may read", passing=True)
        return None

    def _why_no_graph(self) -> Untraceable:
        recorder = self._recorder
        return Untraceable(
            told(recorder.failure or ""),
            recorder.passing,
            closed=frozenset(recorder.closed),
            inside=tuple(recorder.at_work),
            readers=(recorder.ended_in,) if recorder.ended_in else (),
        )

    # -- what there is ----------------------------------------------------------------------------------------------

    def _guard(self) -> Guard:
        recorder = self._recorder
        bound = {
            (id(table), ref.name): table
            for ref in recorder.weights
            if ref.owner() is not None
            for table in [ref.table()]
        }
        # whose content is not watched
        contents: set[tuple[int, None]] = {(id(table), None) for table in recorder.kept_by_host.tables}
        names, kept = recorder.left_to_host, recorder.kept_by_host.attributes
        for layer in root_modules(self._reads) if names or kept else ():
            own = layer.__dict__
            bound |= {(id(own), name): own for name in kept & own.keys()}
            if any(hasattr(type(layer), name) for name in names):
                bound |= {(id(own), name): own for name in names}
                contents |= {
                    (id(value), None) for name in names if isinstance(value := getattr(layer, name, None), list)
                }
        live = self._live_functions()
        rests_on = RestsOn(
            bound,
            self._externals.fixed | self._effects.targets,
            self._leads.placed(self._around.placed.values(), self._effects.written),
            set_by(live) if live else None,
            recorder.keeps_state,
        )
        return Guard(self._reads, contents, rests_on)

    def _live_functions(self) -> list[Any]:
        return [call.where.find(self._around) for call in self._recorder.live]

    def _traced(self, graph: torch.fx.Graph, start: float) -> Trace:
        recorder, tensors, spec = self._recorder, self._tensors, self._spec
        self._effects.settle(tensors)
        outputs = replace(
            spec,
            leaves=tuple(map(tensors.settled, spec.leaves)),
            effects=self._effects,
            writes=recorder.input_writes,
            left=tensors.computed[len(spec.returned) :],
        )
        return Trace(
            graph,
            outputs,
            seconds=time.perf_counter() - start,
            computed_in=frozenset(recorder.autocast.computed_in | recorder.quantised_to),
            kept=tuple(self._externals.holders),
            live=tuple(recorder.live),
            others=self._around.inside_kinds,
            as_they_lie=frozenset(recorder.as_they_lie | tensors.viewed),
            places={lead: weakref.ref(tensor) for lead, tensor in self._externals.places.items()},
        )


def _kept_at(recorder: Recorder, externals: Externals, tensor: torch.Tensor) -> WeightRef | None:
    """Where a tensor is kept that was there before the call."""
    return None if recorder.computes(tensor) else recorder.table.find(tensor) or externals(tensor)


def _changing(reason: str, readers: tuple[Reader, ...], inside: tuple[torch.nn.Module, ...] = ()) -> Untraceable:
    """The call changes what these have read."""
    others = tuple(reader.others for reader in readers if reader.others is not None)
    return Untraceable(reason, changing=True, inside=inside, readers=readers, others=others)


def root_modules(reads: ReadSet) -> list[torch.nn.Module]:
    """The modules below the one that is recorded."""
    root = reads.root()
    return [] if root is None else [module for module in root.modules() if module is not root]
