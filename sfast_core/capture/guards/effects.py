"""What a recorded call leaves behind besides its result: done again at each call, or a reason to run the call as it
was.
"""

from __future__ import annotations

import itertools
import operator
import sys
import threading
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from ..call_tensors import CallTensors
from .containers import NewContainers
from .equality import Equality
from .given import itself
from .kinds import Kind
from .leads import Lead, followed
from .left import Effects, KeptByHost
from .notes import MISSING, Held, Place, Seen, Table, as_it_was, content_of, is_table_of
from .origin import Origin, last_name
from .read_set import ReadSet
from .returning import KeptByOthers, KeptState, described
from .seen_objects import PARTS

_OURS = frozenset({"forward", "_forward", "_fast_compile_engine"})  # of the root: put there for the call
_CYTHONS = ("_cython_", "cython_runtime")  #: files that libraries which it has compiled share among themselves
_EXTENDING = frozenset({"append", "extend"})
_SETTING = frozenset({"__setitem__", "update"})


class NotRepeated(Exception):
    """The call changes something in a way that can't be done again. The message says what.

    Attributes:
        places: what is changed, as the guard knows places.
        state: what it has read and changed of what functions of others keep, as that was before.
    """

    def __init__(self, what: str, places: set[tuple[int, Any]], state: KeptState) -> None:
        super().__init__(what)
        self.places, self.state = places, state


class EffectsFinder:
    """Finds what a call has left behind.

    Args:
        reads: its read set.
        read_tensors: whether the trace reads this tensor, which was there before the call.
        of_call: tells which of the call's tensors is which, and is told of those that are left behind.
        containers: is told of the lists and dicts that are.
        mentioned: where code has run live within the call, gives what tells whether such code mentions a name: it would
            look for what is left there before it is.
        options: the call's, as the forward got them.
        by_host: what isn't the call's.
        by_others: what functions of others keep: that is written to where another call's is.
    """

    def __init__(
        self,
        reads: ReadSet,
        read_tensors: Callable[[torch.Tensor], bool],
        of_call: CallTensors,
        containers: NewContainers,
        mentioned: Callable[[], Callable[[str], bool]] | None,
        options: Any,
        by_host: KeptByHost,
        by_others: KeptByOthers,
    ) -> None:
        self._reads = reads
        self._leads, self._placed, self._state_before = by_others
        # what was changed that was read: where, what was there, and what has it done again
        self._returning: list[tuple[tuple[int, Any], Origin | None, str, Callable[[], bool]]] = []
        self._attributes_of_host, self._tables_of_host = by_host.attributes, set(map(id, by_host.tables))
        self._ask_for_mentioned = mentioned
        self._mentioned: Callable[[str], bool] | None = None
        self._read_tensors = read_tensors
        self._equality = Equality(reads)
        self._exact = Equality(reads, exact=True)  # to whoever finds it later, another call's tensor is another
        self._effects = Effects(options)
        self._of_call, self._containers = of_call, containers
        self._wrong: list[str] = []
        self._places: set[tuple[int, Any]] = set()

    def find(self) -> Effects:
        """What is to be done again.

        Raises:
            NotRepeated: it changed something that it also read, or in a way that can't be repeated, or that live code
                may read or change.
        """
        root = self._reads.root()
        there = [
            (seen, value)
            for seen in self._reads.seen.values()
            if seen.table is not None and (value := seen.get()) is not None
        ]
        untouched = _are_as_before(seen for seen, _ in there)
        for seen, value in there:
            if not (seen.made or is_table_of(seen.table, value) or isinstance(value, threading.local)):
                self._refuse((id(seen.table), None), seen.origin)  # it has another dict by now
            if seen.stored or not untouched:
                self._object(seen, value, value is root)
        for held in self._reads.held.values():
            self._container(held)
        self._rest()
        state = frozenset((str(origin), then) for _, origin, then, _ in self._returning)
        for key, origin, _, do in self._returning:
            if state != self._state_before or not do():
                self._refuse(key, origin)
            self._effects.returning.add(key)
        if self._wrong:
            raise NotRepeated(self._wrong[0], self._places, state)
        return self._effects

    def _live_finds(self, *names: Any) -> bool:
        """Whether code that runs live in the midst of the call may come by something of one of these names."""
        if self._ask_for_mentioned is None:
            return False
        if self._mentioned is None:
            self._mentioned = self._ask_for_mentioned()
        return any(not isinstance(name, str) or self._mentioned(name) for name in names)

    def _refuse(self, key: tuple[int, Any], origin: Origin | None) -> None:
        self._places.add(key)
        self._wrong.append(str(origin) if origin is not None else "the module")

    def _change(
        self, target: Any, key: tuple[int, Any], origin: Origin | None, then: Any, do: Callable[[], bool]
    ) -> None:
        """What it has read of an object, list or dict isn't there any more: ``do`` has that done again."""
        if self._ask_for_mentioned is not None or not self._leads.to(target):
            return self._refuse(key, origin)
        self._returning.append((key, origin, described(then), do))

    def _object(self, seen: Seen, value: Any, is_root: bool) -> None:
        assert seen.table is not None
        passed: frozenset[str] = frozenset()
        if isinstance(value, torch.nn.Module):
            passed = _OURS if is_root else self._attributes_of_host
        stored = seen.stored - passed
        for name in stored if self._ask_for_mentioned is not None else ():
            if self._live_finds(name):  # also where it is what it was: live code may have changed it meanwhile
                self._refuse((id(seen.table), name), Origin(seen.origin, name))
        for name in stored - seen.found.keys():
            now = seen.table.get(name, MISSING)
            if now is not as_it_was(seen.before.get(name, MISSING)):
                continue
            # another one's may be another: then it is set
            if not (
                seen.kind is Kind.OBJECT
                and self._leads.to(value)
                and self._put(seen.get, partial(_set, name, None), now)
            ):
                self._reads.note(seen, name)  # as with globals
        for table, before in ((seen.table, seen.before), *seen.parts):
            if len(table) == len(before) and all(map(operator.is_, table.values(), before.values())):
                continue
            for name in {**before, **table}:
                now, then = table.get(name, MISSING), as_it_was(before.get(name, MISSING))
                if now is not then and name not in passed:
                    self._attribute(seen, name, now, then, table)

    def _attribute(self, seen: Seen, name: str, now: Any, then: Any, table: dict[str, Any]) -> None:
        key, origin = (id(table), name), Origin(seen.origin, name)
        if seen.live and name not in seen.found and name not in seen.stored:
            return
        assert seen.table is not None
        part = None if table is seen.table else next(part for part in PARTS if seen.table.get(part) is table)
        put = partial(self._put, seen.get, partial(_set, name, part), now)
        # by a name that is computed, code may have asked for what wasn't there yet
        if name in seen.found or seen.computed:
            if not self._equality.same(now, then):
                return self._change(seen.get(), key, origin, then, put)
            if not self._another(now, then):
                return
            if self._state(_tensors_in(then)):
                return self._refuse(key, origin)
        if self._live_finds(name) or not put():
            self._refuse(key, origin)

    def _container(self, held: Held) -> None:
        key = (id(held.value), None)
        if key[0] in self._tables_of_host:
            return
        if held.kind is Kind.SET or type(held.value) not in (list, dict):
            if not self._exact.same_items(held.value, held.before, held.kind):
                self._refuse(key, held.origin)
            self._watch(held)
        elif held.kind is Kind.SEQUENCE:
            self._list(held, key)
        else:
            self._dict(held, key)

    def _watch(self, held: Held) -> None:
        """It is as it was: cleared while it was empty, say, or not written to at all.

        So it stays only if nobody else has changed it meanwhile.
        """
        if held.written and self._live_finds(_name(held)):
            self._refuse((id(held.value), None), held.origin)
        if not held.written <= _EXTENDING and not held.read:
            held.read = True

    def _repeat(self, target: Any, do: Callable[[Any], None], value: Any) -> bool:
        """Have that done again at each call; whether it can be."""
        try:
            known = self._effects.are_options(value) or self._containers.why_not(value) is None
            return known and self._effects.add(target, do, value, self._of_call)
        except RecursionError:  # it holds itself, or is too deep
            return False

    def _put(self, get: Callable[[], Any], do: Callable[[Any, Any], None], value: Any) -> bool:
        """Have ``do(get(), value)`` done again at each call; whether it can be. Where functions of others lead to that,
        with another call's.
        """
        target = get()
        if leads := self._leads.to(target):
            self._effects.written.append(target)
            self._effects.by_place = True
            return self._repeat(None, partial(_do_there, self._leads.there, leads[0], do), value)
        return self._repeat(target, lambda made: do(get(), made), value)

    def _state(self, replaced: Iterable[Any]) -> bool:
        """Whether the trace reads one of these tensors where it was found, in whose place another is now: one call's is
        the next one's to read.
        """
        tensors = (tensor for then in replaced for tensor in _tensors_in(then))
        return any(id(tensor) not in self._placed and self._read_tensors(tensor) for tensor in tensors)

    def _list(self, held: Held, key: tuple[int, Any]) -> None:
        now, before = held.value, held.before
        if len(now) == len(before) and all(map(operator.is_, now, before)):
            return self._watch(held)
        if held.read and self._exact.same_items(now, before, held.kind):
            return None
        extend = partial(self._put, lambda: now, list.extend, list(now[len(before) :]))
        if (
            not held.written <= _EXTENDING
            or len(now) < len(before)
            or not all(map(operator.is_, now, before))
            or self._live_finds(_name(held))
        ):
            self._refuse(key, held.origin)
        elif held.read:
            self._change(now, key, held.origin, before, extend)
        elif not extend():
            self._refuse(key, held.origin)
        return None

    def _dict(self, held: Held, key: tuple[int, Any]) -> None:
        now = held.value
        keys, values = held.before
        if len(now) == len(keys) and all(map(operator.is_, now, keys)) and all(map(operator.is_, now.values(), values)):
            return self._watch(held)
        before = dict(zip(keys, values, strict=True))
        changed = {name: item for name, item in now.items() if before.get(name, MISSING) is not item}
        update = partial(self._put, lambda: now, dict.update, changed)
        if (
            not held.written <= _SETTING
            or before.keys() - now.keys()
            or self._live_finds(_name(held), *changed)
            or (held.read and self._state(before[name] for name in changed.keys() & before.keys()))
        ):
            self._refuse(key, held.origin)
        elif held.read and not self._equality.same_items(now, held.before, held.kind):
            self._change(now, key, held.origin, before, update)
        elif not update():
            self._refuse(key, held.origin)
        return None

    def _rest(self) -> None:
        """Globals, items of dictionaries, class attributes, cells and what is asked for: these may not change, but for
        globals that are only set, and classes that are handed the call's options.
        """
        reads = self._reads
        reads.carriers.note(reads, reads.stored, anything=False)
        for key, place in reads.places.items():
            now = itself(place.table.get(place.name, MISSING))
            if not place.read:
                self._global(key, place, now)
            elif self._another(now, place.then):
                where = Origin(place.origin, place.name)
                if (held := reads.held.get(id(place.table))) is not None and held.written:  # with what is put into that
                    self._change(place.table, key, where, place.then, lambda: True)
                else:
                    self._refuse(key, where)
        for name in sys.modules.keys() - reads.files if reads.asks_for_files else ():
            if getattr(sys.modules[name], "__spec__", None) is None and not name.startswith(_CYTHONS):
                # no import has put it there
                self._refuse((id(sys.modules), name), Origin(Origin(None, "sys.modules"), name))
        for cls, attributes in reads.spaces.items():
            for name in reads.stored & (vars(cls).keys() | attributes.keys()):
                now = itself(vars(cls).get(name, MISSING))
                if not self._is_handed(cls, name, now) and self._another(now, attributes.get(name, MISSING)):
                    self._refuse((id(cls), name), Origin(Origin(None, cls.__qualname__), name))
        for (cls, name), then in reads.put.items():
            # set to what it was, or not at all: the same at a later call only if nobody has set it meanwhile
            if not self._effects.are_options(itself(vars(cls).get(name, MISSING))):
                reads.classes[cls, name] = then
        for (cls, name), then in reads.classes.items():
            for owner, before in zip(cls.__mro__[:-1], then, strict=True):
                now = itself(vars(owner).get(name, MISSING))
                if self._another(now, before):
                    self._refuse((id(cls), name), Origin(Origin(None, cls.__qualname__), name))
        for cache, name in reads.kept_anew():
            self._refuse((cache, None), Origin(None, f"what {name} keeps"))
        for table, part, hooks, origin in reads.hooks:
            if list(map(id, table.get(part, {}).values())) != list(map(id, hooks.values())):
                self._refuse((id(table), part), Origin(origin, part))
        for seen in reads.functions.values():
            for cell, then in seen.cells:
                if self._another(content_of(cell), then):
                    self._refuse((id(cell), None), seen.origin or Origin(None, seen.function.__qualname__))
        for key, asked in reads.asked.items():
            now = asked.ask(*asked.of)
            if self._another(now, asked.then):
                self._refuse(key, asked.origin)

    def _global(self, key: tuple[int, Any], place: Place, now: Any) -> None:
        """One that code sets and that none reads."""
        # it was set to what it was, or not at all: the same at a later call only if nobody has set it meanwhile
        if self._live_finds(place.name, last_name(place.origin)):
            self._refuse(key, Origin(place.origin, place.name))
        elif now is place.then:
            place.read = True
        elif not self._repeat(None, partial(operator.setitem, place.table, place.name), now):
            self._refuse(key, Origin(place.origin, place.name))

    def _is_handed(self, cls: type, name: str, options: Any) -> bool:
        """Whether a class is handed the call's options, and no code that runs live looks for them there.

        Packs have each block of each model do so as soon as they are installed, for functions of their own that few
        workflows have.
        """
        return (
            self._effects.are_options(options)
            and not self._live_finds(name)
            and self._effects.add(None, partial(setattr, cls, name), options, self._of_call)
        )

    def _another(self, now: Any, then: Any) -> bool:
        """Whether a place holds something else than before: also a tensor like the one that was there, since its values
        are others.
        """
        if (
            type(then) is dict
            and now is not then
            and ((held := self._reads.held.get(id(then))) is None or not held.read)
        ):
            return True  # an equal one, of which only some items are compared at each call
        return now is not then and not self._exact.same(now, then)


def _set(name: str, part: str | None, target: Any, value: Any) -> None:
    """Where the call has left it: what a ``__setattr__`` of the target's class did besides is an effect of its own."""
    own = object.__getattribute__(target, "__dict__")
    (own if part is None else own[part])[name] = value


def _do_there(there: Mapping[str, Any], lead: Lead, do: Callable[[Any, Any], None], value: Any) -> None:
    do(followed(there, lead), value)


def _are_as_before(objects: Iterable[Seen]) -> bool:
    """Whether all attributes, parameters, buffers and children are the very ones that they were.

    So it is in nearly each call, of thousands of layers: C compares them.
    """
    now: list[Any] = []
    then: list[Table] = []
    for seen in objects:
        if seen.table or seen.before:
            now.append(seen.table)
            then.append(seen.before)
        for table, before in seen.parts:
            if table or before:
                now.append(table)
                then.append(before)
    values = (itertools.chain.from_iterable(map(dict.values, tables)) for tables in (now, then))
    return list(map(len, now)) == list(map(len, then)) and all(map(operator.is_, *values))


def _name(held: Held) -> Any:
    return last_name(held.origin)


def _tensors_in(value: Any) -> list[torch.Tensor]:
    return [leaf for leaf in _pytree.tree_leaves(value) if isinstance(leaf, torch.Tensor)]
