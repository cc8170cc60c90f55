"""Records live calls: each is one node, which is handed the tensors that the recorded call handed over, and is never
run twice for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from ...reporting.reason import reason_of
from ...reporting.reasons.records import OVERLAPPING, RANDOM
from ...weights.part import is_plain
from ..errors import CaptureError
from ..externals import Found
from ..functional import element
from ..nodes import call_function
from ..random_state import RandomState
from ..rebuilding import rebuilt
from .aliases import aliases_of
from .building import Building
from .call import Bring, LiveCall, Where
from .callbacks import Recorded
from .contents import outlines
from .form import Form
from .frames import FRAME
from .functions import InTable
from .kept import Holders, InOptions, Kept, among, kept_of
from .leaving import Leaving
from .left_out import LeftOut
from .lending import Handed
from .lent import references, referred_to, version_of
from .modules import InModule, contents
from .options import Foreign
from .own import Own, OwnMethod, own_of
from .repeatable import state_of
from .structure import Structure, looked, pattern_of
from .surroundings import Surroundings, tensors_in
from .template import Filling, Template

if TYPE_CHECKING:
    from ..guards import ReadSet

_ROOM = 2**30  # bytes of what live code is handed that are kept for the proof


@dataclass
class _Run:
    """One run of live code while a call is recorded.

    Attributes:
        where: what runs.
        building: collects what it is given.
        template: makes that.
        handed: the tensors among it: copies, or the model's own where nothing is recorded any more.
        before: what was in them, for the proof.
        callbacks: the model's own functions among it, and behind these such as they close over.
        own: they as they are, as far as they can be made at another call.
        called: how many of them it is given.
        result: what it returns.
        written: which of ``handed`` it writes to.
        held: the ids of what somebody holds of that, and of what it was handed.
        together: which of ``handed`` have elements in common.
        repeatable: it gives the same for the same, as far as is known.
    """

    where: Where
    building: Building
    template: Template
    handed: list[torch.Tensor]
    before: list[torch.Tensor | None]
    callbacks: list[Recorded]
    own: list[Own | OwnMethod | None]
    called: int
    result: Any = None
    written: list[int] = field(default_factory=list)
    held: frozenset[int] = frozenset()
    repeatable: bool = False
    together: set[int] = field(default_factory=set)


class LiveRecording(Leaving):
    """Bookkeeping of live calls. What a recorder has besides is given here as it is used."""

    failure: str | None
    read_set: ReadSet | None
    random: RandomState | None
    refuse: Callable[..., None]
    paused: Callable[[], Any]
    resumed: Callable[[], Any]
    _refuse_unwritten: Callable[[], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.random = None
        self._in_live = 0
        self.kept_by_live: list[Kept] = []
        self.left_out = LeftOut()
        self.handed_back = False  # live code has returned what it was handed
        self.brought: dict[int, Bring] = {}  # by which weights are there just now
        self._room = _ROOM

    def call_live(self, foreign: Foreign, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What a foreign function returns for these arguments, as the recorded forward gives them."""
        return self._live_call(InOptions(foreign.path, foreign.name, foreign.why_live), foreign.around, args, kwargs)

    def call_live_code(
        self,
        where: InModule | InTable,
        around: Surroundings,
        call: Callable[..., Any],
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
    ) -> Any:
        """What a module or a function returns that runs live, and that ``call`` calls."""
        return call(*args, **kwargs) if self._in_live else self._live_call(where, around, args, kwargs, call)

    def _live_call(
        self,
        where: Where,
        around: Surroundings,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        call: Callable[..., Any] | None = None,
    ) -> Any:
        with self.paused():
            run = self._prepared(where, around, args, kwargs)
            building, handed, real = run.building, run.handed, run.building.real
            given = run.template.fill(Filling(handed, around, run.callbacks))
            content = around.contents(given)
            boxes = {
                number: contents(around.boxes[number]) for number in building.containers if isinstance(where, InModule)
            }
            self._run_live(run, call or where.find(around), *given)
            uncalled = not run.repeatable and any(not function.ways for function in run.callbacks[: run.called])
            if not run.repeatable and None in run.own[: run.called]:
                self.refuse(f"{where.name} may run a part of the model otherwise, which can't be made again")
            if self.left_out.may_come(where.key, uncalled):
                self.refuse(f"{where.name} left out a part of the model that it may run at another step", passing=True)
            left = self._take_over(where, building, boxes)
            found = [each.left() for each in content]
            if not isinstance(where, InModule):
                self._hand_over(where, building, zip(content, found, strict=True))
            if not run.together.isdisjoint(run.written):  # at another call they would be copies apart
                self.refuse(OVERLAPPING(name=where.name))
            size = sum(tensor.nbytes for tensor in tensors_in(run.result))
            written = [(handed[index], handed[index]) for index in run.written]
            around.note_ran(where, given, run.result, handed, written, size, found, run.held)
            structure = Structure(run.result, around)
            models, returned = self._for_model(run, structure)
            self.kept_by_live += kept_of(models, run.result, run.held, where.name)
            if not real and self.failure is None:
                try:
                    live = self._write_down(run, structure, models, returned)
                    live.repeatable, live.left = run.repeatable, left
                    if not isinstance(where, InModule):
                        live.leaves = outlines(content, found, around)
                except CaptureError as error:
                    self.refuse(reason_of(error))
                except Exception as error:
                    self.refuse(f"{where.name} can't be recorded: {type(error).__name__}: {error}")
            return models

    def _prepared(self, where: Where, around: Surroundings, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Run:
        """How the arguments are made at each call, and what this one is handed."""
        building = Building(self, where.name, around)
        try:
            template = building.of((args, kwargs))
        except CaptureError as error:
            self.refuse(reason_of(error))
            building = Building(self, where.name, around, real=True)
            template = building.of((args, kwargs))
        called = len(building.callbacks)
        own = [] if building.real else [own_of(function, building) for function in building.callbacks]
        handed, together = self._lent(building)
        if self.random is not None and self.random.moved():
            self.refuse(RANDOM())
        before = [] if building.real else self._kept_for_proof(building.tensors)
        callbacks = [Recorded(self, function, around) for function in building.callbacks]
        return _Run(where, building, template, handed, before, callbacks, own, called, together=together)

    def _run_live(self, run: _Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the live code itself."""
        state = None if run.building.real else state_of(function)
        holders = Holders(run.handed)
        versions, referred = list(map(version_of, run.handed)), list(map(references, run.handed))
        self._in_live += 1
        try:
            with out_of_sight(self):
                box = [function(*args, **kwargs)]
            ours = [tensor for recorded in run.callbacks for way in recorded.ways for tensor in way.given]
            run.held, run.result = holders.kept(box, ours), box[0]
            drew = self.random is None or self.random.moved() or self.random.foreign_moved()
            run.repeatable = state is not None and not drew and state_of(function) == state
            very = run.building.very
            run.written = [
                index
                for index, (tensor, then) in enumerate(zip(run.handed, versions, strict=True))
                if version_of(tensor) != then or (tensor.is_inference() and index not in very)
            ]
            if self.twins.take(run.handed):
                self.refuse(f"{run.where.name} writes to what was handed over before")
            exempt = run.held.union(id(run.handed[index]) for index in very)
            if referred_to(run.handed, referred, [] if ours else tensors_in(run.result), exempt):
                self.refuse(f"{run.where.name} refers weakly to what it is handed, or returns", passing=True)
        except Exception:  # the model may go on without it, and at another call there is none
            self.refuse(f"{run.where.name} raised an error", passing=True)
            raise
        finally:
            self._in_live -= 1
            if self.random is not None:
                self.random.renew()

    def _kept_for_proof(self, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Copies of what live code is handed, which may write to it, as far as there is room; None in the place of each
        other.
        """
        kept: list[torch.Tensor | None] = []
        for tensor in tensors:
            self._room -= tensor.nbytes
            kept.append(tensor.detach().clone() if self._room >= 0 else None)
        return kept

    def _for_model(self, run: _Run, structure: Structure) -> tuple[Any, list[torch.Tensor]]:
        """The result as the model gets it, and its tensors: new objects, which lie where the model's own do if they
        were handed back.
        """
        building, handed = run.building, run.handed
        handed_back = any(tensor is each for tensor in structure.tensors for each in handed)
        if handed_back and self.read_set is not None and self.read_set.tells_apart:
            self.refuse(f"the model asks which of its tensors {building.name} returns")
        self.handed_back |= handed_back
        # without a record the model is to find its own, also where it looks by them in a dict
        real = building.real or structure.unknown is not None or self.failure is not None
        lying = {self._storage(tensor): index for index, tensor in enumerate(handed)}
        made: dict[int, torch.Tensor] = {}
        for tensor in structure.tensors:
            with torch._C.DisableTorchFunction():
                index = lying.get(self._storage(tensor)) if is_plain(tensor) else None
                if index is not None and (real or building.tensors[index].stride() == handed[index].stride()):
                    made[id(tensor)] = self._in_own(tensor, building.tensors[index], handed[index], real)
                elif not real and (index is not None or id(tensor) in run.held or self._is_known(tensor)):
                    made[id(tensor)] = tensor.detach()
                else:
                    made[id(tensor)] = tensor
        options = building.around

        def replace_(value: Any, key: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return made.get(id(value), value)
            return self._stand_in(value, options, key)

        if building.real:
            return rebuilt(run.result, replace_, anew=False), []
        return looked(rebuilt(run.result, replace_)), [made[id(tensor)] for tensor in structure.tensors]

    def _in_own(self, tensor: torch.Tensor, own: torch.Tensor, handed: torch.Tensor, real: bool) -> torch.Tensor:
        """What live code has returned lies in what it was handed: the same part of the model's own."""
        if real and (handed is own or tensor is handed):
            return own if tensor is handed else tensor
        return own.as_strided(tensor.size(), tensor.stride(), own.storage_offset() + tensor.storage_offset())

    def _is_known(self, tensor: torch.Tensor) -> bool:
        """Whether the model has this very tensor, which at another call live code may not return."""
        if tensor in self._nodes or any(tensor in frame["_nodes"] for frame in self._outer):
            return True
        return self._table.find(tensor) is not None

    def _stand_in(self, value: Any, around: Surroundings, key: Any = None) -> Any:
        """What the model has in the place of an option of the call's."""
        if around.traced is not None and around.is_unread(key, value):
            return around.traced.stand_in((key,))
        if around.traced is None or isinstance(value, (bool, int, float, str, type(None))):
            return value
        path = around.path(value)
        found = None if path is None else around.traced.stand_in(path)
        return value if found is None else found

    def _write_down(self, run: _Run, structure: Structure, models: Any, returned: list[torch.Tensor]) -> LiveCall:
        where, building, handed, written = run.where, run.building, run.handed, run.written
        if structure.unknown is not None:
            raise CaptureError(f"{where.name} returns {structure.unknown}")
        for tensor in returned:
            if tensor.requires_grad or tensor.is_conj() or tensor.is_neg():
                raise CaptureError(f"{where.name} returns a tensor that requires grad or is lazily conjugated")
        for index in written:
            if self._is_foreign(building.tensors[index]):
                raise CaptureError(f"{where.name} writes to an input or a weight in place")
        out_forms = tuple(map(Form.of, [*returned, *(handed[index] for index in written)]))
        outer = list(dict.fromkeys(node for recorded in run.callbacks for nodes in recorded.outer for node in nodes))
        for recorded in run.callbacks:
            for way, nodes in zip(recorded.ways, recorded.outer, strict=True):
                way.outer = tuple(outer.index(node) for node in nodes)
        handing = self._handing(building)
        call = LiveCall(
            where,
            run.template,
            handing,
            pattern_of(run.result, building.around, structure.tensors, models),
            out_forms,
            tuple(written),
            aliases=aliases_of(structure.tensors, handed),
            kept=frozenset(place for place, tensor in enumerate(structure.tensors) if among(tensor, run.held))
            | frozenset(~index for index, tensor in enumerate(handed) if id(tensor) in run.held),
            callbacks=[recorded.ways for recorded in run.callbacks],
            own=run.own,
            handed=run.before,
            returned=[tensor.detach().clone() for tensor in (*returned, *(handed[index] for index in written))],
            brought=tuple(self.brought.values()),
        )
        node = call_function(self.graph, call, (tuple(building.nodes), tuple(outer)))
        self.live.append(call)
        for place, tensor in enumerate(returned):
            result = call_function(self.graph, element, (node, place))
            self._bind_form(tensor, result, out_forms[place])
            for own in building.tensors:
                self._join(tensor, own, call)
        for place, index in enumerate(written, len(returned)):
            own = building.tensors[index]
            result = call_function(self.graph, element, (node, place))
            self._set_form(result, out_forms[place])
            self._nodes[own] = result
            self._written_through(
                own,
                result,
                [other for other in self._live_aliases(own) if all(other is not tensor for tensor in returned)],
            )
        # behind its own writes: what it keeps has those
        self._may_be_kept(call, returned, building.tensors)
        handing.after = tuple(self._value_number(self._node(tensor, where.name)) for tensor in building.tensors)
        lent = [self._lend(own, tensor, run.held) for own, tensor in zip(returned, structure.tensors, strict=True)]
        self._handed.append(Handed(call, node, building, lent, len(self._outer)))
        return call

    def _finish_live(self, found: Found) -> None:
        """The call is over: close the graphs of callbacks, and see what the model uses after it was handed out.

        Raises:
            CaptureError: something in them can't be recorded.
        """
        self._check_left()
        for recalled, frame in self._frames:
            self._outer.append({name: getattr(self, name) for name in FRAME})
            for name, value in frame.items():
                setattr(self, name, value)
            try:
                self._refuse_unwritten()
                self._name_externals(found)
                recalled.graph = self.graph
            finally:
                for name, value in self._outer.pop().items():
                    setattr(self, name, value)
        orders: dict[int, dict[torch.fx.Node, int]] = {}
        again: set[int] = set()
        for handed in reversed(self._handed):
            call, node = handed.call, handed.node
            places = orders.setdefault(id(node.graph), {})
            if not places:
                places.update((each, place) for place, each in enumerate(node.graph.nodes))
            behind = places[node]
            call.used = frozenset(user.args[1] for user in node.users if user.target is element and user.users)
            if call.placed:  # what is read later may be what was written to what it lies in
                call.used |= frozenset(range(len(call.aliases)))
            call.watched = frozenset(
                index
                for index, same in enumerate(handed.building.aliases)
                if index not in call.written
                and (
                    self._is_foreign(handed.building.tensors[index])
                    or any(places.get(user, -1) > behind for each in same for user in each.users)
                )
            )
            self._say_what_is_handed(handed, again)


@contextmanager
def out_of_sight(recorder: Any) -> Iterator[None]:
    """Off the stack of modes, for code that runs live: it may ask whether functions of tensors are watched."""
    on = torch.overrides._get_current_function_mode() is recorder
    if on:
        recorder.__exit__(None, None, None)
    try:
        yield
    finally:
        if on:
            recorder.__enter__()
