"""Records live calls: each is one node, which is handed the tensors that the recorded call handed over, and is never
run twice for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch

from ...reporting.reason import reason_of
from ...reporting.reasons.records import OVERLAPPING, RANDOM
from ...weights.part import is_plain
from ..errors import CaptureError
from ..externals import Found
from ..functional import element
from ..nodes import call_function
from ..random_state import RandomState
from .aliases import aliases_of
from .building import Building
from .call import Bring, LiveCall, Where
from .callbacks import Recorded
from .contents import Content, Left, outlines
from .form import Form, copies, lie_together
from .frames import FRAME, Frames
from .functions import InTable
from .kept import Holders, InOptions, Kept, among
from .modules import InModule, contents, new_items, other_contents
from .options import Foreign, LeftByLive
from .rebuilding import rebuilt
from .repeatable import state_of
from .structure import Structure, looked, pattern_of
from .surroundings import Surroundings, tensors_in
from .template import Filling, Template

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
        callbacks: the model's own functions among it.
        result: what it returns.
        written: which of ``handed`` it writes to.
        held: the ids of what somebody holds of that, and of what it was handed.
        repeatable: it gives the same for the same, as far as is known.
    """

    where: Where
    building: Building
    template: Template
    handed: list[torch.Tensor]
    before: list[torch.Tensor | None]
    callbacks: list[Recorded]
    result: Any = None
    written: list[int] = field(default_factory=list)
    held: frozenset[int] = frozenset()
    repeatable: bool = False


class LiveRecording(Frames):
    """Bookkeeping of live calls. What a recorder has besides is given here as it is used."""

    failure: str | None
    random: RandomState | None
    refuse: Callable[..., None]
    paused: Callable[[], Any]
    resumed: Callable[[], Any]
    _refuse_unwritten: Callable[[], None]

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.random = None
        self._boxes: dict[int, tuple[Any, int, dict[Any, Any]]] = {}
        self._handed: list[tuple[LiveCall, torch.fx.Node, list[list[torch.fx.Node]]]] = []
        self._in_live = 0
        self.kept_by_live: list[Kept] = []
        self._left: list[tuple[str, list[Any], tuple[Any, ...]]] = []  # lists that modules put into dicts, as they were
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
            together = set() if real else lie_together(handed, building.tensors)
            given = run.template.fill(Filling(handed, around, run.callbacks))
            versions = [] if real else [tensor._version for tensor in handed]
            content = around.contents(given)
            boxes = {
                number: contents(around.boxes[number]) for number in building.containers if isinstance(where, InModule)
            }
            self._run_live(run, call or where.find(around), *given)
            left = self._take_over(where, building, boxes)
            found = [each.left() for each in content]
            if not isinstance(where, InModule):
                self._hand_over(where, building, zip(content, found, strict=True))
            run.written = [index for index, then in enumerate(versions) if handed[index]._version != then]
            if not together.isdisjoint(run.written):  # at another call they would be copies apart
                self.refuse(OVERLAPPING(name=where.name))
            size = sum(tensor.nbytes for tensor in tensors_in(run.result))
            written = [handed[index] for index in run.written]
            around.note_ran(where, given, run.result, handed, written, size, found, run.held)
            if real:
                return rebuilt(run.result, lambda value, key: self._stand_in(value, around, key))
            with torch._C.DisableTorchFunction():
                for index in run.written:
                    building.tensors[index].copy_(handed[index])
            structure = Structure(run.result, around)
            models, returned = self._for_model(run.result, structure, handed, building)
            if id(run.result) in run.held and not isinstance(run.result, torch.Tensor):
                self.kept_by_live.append(Kept(models, run.result, where.name))
            if self.failure is None:
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
        handed = building.tensors if building.real else copies(building.forms, building.tensors)
        if self.random is not None and self.random.moved():
            self.refuse(RANDOM())
        before = [] if building.real else self._kept_for_proof(building.tensors)
        callbacks = [Recorded(self, function, around) for function in building.callbacks]
        return _Run(where, building, template, handed, before, callbacks)

    def _run_live(self, run: _Run, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Run the live code itself."""
        state = None if run.building.real else state_of(function)
        holders = Holders(run.handed)
        self._in_live += 1
        try:
            with out_of_sight(self):
                box = [function(*args, **kwargs)]
            ours = [tensor for recorded in run.callbacks for way in recorded.ways for tensor in way.given]
            run.held, run.result = holders.kept(box, ours), box[0]
            drew = self.random is None or self.random.moved() or self.random.foreign_moved()
            run.repeatable = state is not None and not drew and state_of(function) == state
        except Exception:  # the model may go on without it, and at another call there is none
            self.refuse(f"{run.where.name} raised an error", passing=True)
            raise
        finally:
            self._in_live -= 1
            if self.random is not None:
                self.random.renew()

    def _take_over(
        self, where: Where, building: Building, boxes: dict[int, list[tuple[Any, Any]]]
    ) -> dict[int, dict[Any, tuple[type, Any]]]:
        """A module of the model's has changed lists or dicts that it was handed: for this call the model's own are
        changed alike.

        Returns the plain values that it has put into dicts. A program has them as they are, and sees that the module
        does so again; nothing else.
        """
        left = {}
        for number, then in boxes.items():
            box, own = building.around.boxes[number], building.containers[number]
            if not other_contents(contents(box), then):
                continue
            models = {id(item): dict(contents(own)).get(place, item) for place, item in then}
            if (new := new_items(box, then)) is not None:
                left[number] = new
                self._left += [(where.name, box[key], items) for key, (kind, items) in new.items() if kind is list]
            else:
                self.refuse(f"{where.name} changes a {type(own).__name__} that it is handed")
            now = [(place, models.get(id(item), item)) for place, item in contents(box)]
            own.clear()
            if isinstance(own, dict):
                own.update(now)
            else:
                own.extend(item for _, item in now)
        return left

    def _hand_over(self, where: Where, building: Building, left: Iterable[tuple[Content, Left]]) -> None:
        """A function of others has changed lists or dicts that it was handed: so has the model's own. What was put into
        a dict may be handed on and not looked at, but for whether it is there and is something.
        """
        numbers: dict[int, int] | None = None
        for content, found in left:
            if not found:
                continue
            if numbers is None:
                numbers = {id(building.around.boxes.get(number)): number for number in building.containers}
            number = numbers.get(id(content.container))
            if number is None:
                continue
            own = building.containers[number]
            if isinstance(own, dict):
                for key, item in found.items.items():
                    plain = item is None or building.real
                    dict.__setitem__(own, key, item if plain else LeftByLive(number, key, where.name, building.around))
                for key in found.gone:
                    dict.pop(own, key, None)
            else:
                models = {id(item): mine for item, mine in zip(content.then, own, strict=True)}
                own[:] = [models.get(id(item), item) for item in content.container]
                self.refuse(f"{where.name} changes a list that it is handed")

    def _kept_for_proof(self, tensors: list[torch.Tensor]) -> list[torch.Tensor | None]:
        """Copies of what live code is handed, which may write to it, as far as there is room; None in the place of each
        other.
        """
        kept: list[torch.Tensor | None] = []
        for tensor in tensors:
            self._room -= tensor.nbytes
            kept.append(tensor.detach().clone() if self._room >= 0 else None)
        return kept

    def _for_model(
        self, result: Any, structure: Structure, handed: list[torch.Tensor], building: Building
    ) -> tuple[Any, list[torch.Tensor]]:
        """The result as the model gets it, and its tensors: new objects, which lie where the model's own do if they
        were handed back.
        """
        lying = {self._storage(tensor): index for index, tensor in enumerate(handed)}
        made: dict[int, torch.Tensor] = {}
        for tensor in structure.tensors:
            with torch._C.DisableTorchFunction():
                index = lying.get(self._storage(tensor)) if is_plain(tensor) else None
                if index is None:
                    made[id(tensor)] = (
                        tensor.detach()
                        if tensor in self._nodes or any(tensor in frame["_nodes"] for frame in self._outer)
                        else tensor
                    )
                    continue
                own = building.tensors[index]
                if tuple(own.stride()) == tuple(handed[index].stride()):
                    made[id(tensor)] = own.as_strided(
                        tensor.size(), tensor.stride(), own.storage_offset() + tensor.storage_offset()
                    )
                else:
                    made[id(tensor)] = tensor.detach()
        options = building.around

        def replace_(value: Any, key: Any) -> Any:
            if isinstance(value, torch.Tensor):
                return made.get(id(value), value)
            return self._stand_in(value, options, key)

        return looked(rebuilt(result, replace_)), [made[id(tensor)] for tensor in structure.tensors]

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
        call = LiveCall(
            where,
            run.template,
            tuple(building.forms),
            building.inputs,
            pattern_of(run.result, building.around, structure.tensors, models),
            out_forms,
            tuple(written),
            aliases=aliases_of(structure.tensors, handed),
            kept=frozenset(place for place, tensor in enumerate(structure.tensors) if among(tensor, run.held))
            | frozenset(~index for index, tensor in enumerate(handed) if id(tensor) in run.held),
            callbacks=[recorded.ways for recorded in run.callbacks],
            handed=run.before,
            returned=[tensor.detach().clone() for tensor in (*returned, *(handed[index] for index in written))],
            brought=tuple(self.brought.values()),
        )
        node = call_function(self.graph, call, (tuple(building.nodes), tuple(outer)))
        self.live.append(call)
        self._handed.append((call, node, building.aliases))
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
        self._may_be_kept(call, returned, building.tensors, handed)
        return call

    def _finish_live(self, found: Found) -> None:
        """The call is over: close the graphs of callbacks, and see what the model uses after it was handed out.

        Raises:
            CaptureError: something in them can't be recorded.
        """
        for name, items, then in self._left:
            if tuple(items) != then:
                raise CaptureError(f"a list that {name} leaves is changed by others")
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
        for call, node, aliases in self._handed:
            places = orders.setdefault(id(node.graph), {})
            if not places:
                places.update((each, place) for place, each in enumerate(node.graph.nodes))
            behind = places[node]
            call.used = frozenset(user.args[1] for user in node.users if user.target is element and user.users)  # type: ignore[misc]
            if call.placed:  # what is read later may be what was written to what it lies in
                call.used |= frozenset(range(len(call.aliases)))
            call.watched = frozenset(
                index
                for index, same in enumerate(aliases)
                if index not in call.written
                and any(places.get(user, -1) > behind for each in same for user in each.users)
            )


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
