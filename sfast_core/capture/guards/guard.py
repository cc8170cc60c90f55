"""Did something change that a recorded call read? Asked at every call, so what is watched lies in flat lists that C
compares.

SDXL's UNet has some ten thousand places. Where nothing changed, no loop of Python's runs over them; where an object is
another one, it is looked at more closely.
"""

from __future__ import annotations

import collections
import copy
import itertools
import operator
import weakref
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import partial
from types import CodeType
from typing import TYPE_CHECKING, Any

import torch

from .attributes import leads_to_ours, rows_of, rows_of_walked
from .by_others import ByOthers, Counts, Look, differs
from .classes import Classes
from .contents import Contents, has_notes, has_weights, of_dicts, of_lists
from .equality import Equality
from .functions import Functions
from .hooks import HOOKING, hooks_of
from .kinds import Kind
from .marks import is_this, marks_of
from .notes import MISSING, Held, is_table_of
from .origin import Origin, last_name
from .places import Places, in_rows
from .read_set import ReadSet
from .readers import Key, Reader, code_of
from .rests_on import RestsOn
from .sized import sized_of
from .tensor_notes import TensorNotes
from .unmarked import Unmarked, put_on_tensors
from .untouched import Untouched, version_of_attributes, version_of_dicts

#: Containers that are true where there is something in them, whatever code there is.
_TELLING = (set, collections.OrderedDict, collections.defaultdict, collections.deque)
_dict_of = vars(torch.nn.Module)["__dict__"].__get__
_UNSTEADY = 8  # things that are another at each call

if TYPE_CHECKING:
    from ..decisions import Decisions


_NOTHING_ELSE = RestsOn()


class Guard:
    """What a recorded call read, as it was when the call began. The root is held weakly.

    Args:
        reads: the call's, which is over.
        without: places that are not to be watched, since the call itself changes them.
        trace: what else its trace rests on, where there is one.

    Attributes:
        hooked: why a trace of this call can't be trusted, or None: hooks may do anything besides computing.
        by_others: what of this code that runs live may change.
        decisions: of the call, by the values of its tensors; None where there are none, or the call was given up
            before it was over.
        what: the place of what was found to have changed last, where that is known.
    """

    what: Key | None = None
    _left_out: frozenset[Key] = frozenset()

    def __init__(
        self, reads: ReadSet, without: Collection[tuple[int, Any]] = (), trace: RestsOn = _NOTHING_ELSE
    ) -> None:
        bound, placed = trace.bound, trace.placed
        self.decisions: Decisions | None = None
        self._root, self._referred = reads.root, [referred.ref for referred in reads.weakly.values()]
        self._readers = reads.readers.of
        self._fixed = frozenset(trace.fixed)
        marks = marks_of(reads)
        marked = [(table, name, table.get(name)) for (_, name), table in bound.items()] if marks else []
        self._marked = [
            (table, name, is_this(weight), marks[id(weight)]) for table, name, weight in marked if id(weight) in marks
        ]
        notes = TensorNotes(self._fixed, marks, reads.exact, placed, bound)
        self._told_apart, self._pattern = notes.told_apart, placed.pattern
        counted = [table for table, *_ in reads.counted.values()]
        self._unmarked = Unmarked(counted, None if reads.anything else put_on_tensors(reads.loose))
        root = reads.root()
        self._hooks = hooks_of(
            [(seen.origin, seen.get()) for seen in reads.seen.values() if seen.kind is Kind.MODULE and not seen.live],
            root,
            trace.keeps_state,
        )
        left_out = {*bound, *without, *placed.places}
        rows = rows_of(reads, left_out, notes.noted)
        carried = [(each, frozenset(each.table)) for each in reads.carriers]
        notes.let_go(reads)
        self._equality = Equality(reads, self._fixed | self._hooks.owned, by_item=True, by_value=placed.through.keys())
        self._same = self._equality.same
        own = None if root is None else root.__dict__
        rows += rows_of_walked(reads, left_out, notes.noted)
        rows += in_rows([place for key, place in reads.places.items() if place.read and key not in left_out])
        self._root_places = {
            name: then
            for row in rows
            if row.table is own
            for name, then in row.items()
            if not leads_to_ours(name, then)
        }
        # its own leads to the compiled state, and that to here
        watched = self._hooks.among(row for row in rows if row.table is not own)
        self._places = Places(watched, self._same)
        held = [held for key, held in reads.held.items() if held.read and (key, None) not in left_out]
        quick = [entry for entry in held if type(entry.value) in (list, dict) and not has_notes(entry)]
        self._lists = Contents([entry for entry in quick if type(entry.value) is list], of_lists)
        self._dicts = Contents([entry for entry in quick if type(entry.value) is dict], of_dicts)
        at_once = set(map(id, quick))
        others = [
            entry
            for entry in held
            if id(entry) not in at_once and (type(entry.value) not in (tuple, frozenset) or has_weights(entry))
        ]
        self._without_any = [entry.value for entry in others if type(entry.value) in _TELLING and not entry.value]
        self._others = sorted(others, key=lambda entry: type(entry.value) in _TELLING and not entry.value)
        self._asked = [(key, asked) for key, asked in reads.asked.items() if key not in without]
        functions = [seen for key, seen in reads.functions.items() if key not in placed.through]
        self._functions = Functions(functions, without, self._same)
        self._counted = list(reads.counted.values())
        self._empty = [table for table, count, _ in self._counted if not count]  # two thirds of them
        self._counted_tables = [table for table, count, _ in self._counted if count]
        self._counts = [count for _, count, _ in self._counted if count]
        self._classes = Classes(reads, without, self._equality)
        self._set_types(reads)
        self._sized = sized_of(reads, bound, carried)
        self._attributes = Untouched(
            itertools.chain((row.table for row in watched), self._sized.tables), version_of_attributes()
        )
        self._parts = Untouched(
            itertools.chain((table for table, *_ in self._counted), self._dicts.values), version_of_dicts()
        )
        weights = [(table, name) for (_, name), table in bound.items()]
        self.by_others = ByOthers(self._readers, partial(self._looks, held), weights, trace.set_live)
        self.hooked = self._hooks.reason
        for seen in reads.seen.values():
            if seen.get() is root:
                seen.table = None

    def _looks(self, held: Iterable[Held], counts: Counts) -> Iterator[Look]:
        """Those of the places that are compared which count, each by itself."""
        is_other = partial(differs, self._same)
        for name, then in self._root_places.items():
            if counts(None, name):
                yield Look(None, name, partial(is_other, partial(_attribute, self._root, name), then))
        if counts(None, "_forward_hooks"):
            yield Look(None, "the forward hooks of a layer", self._hooks.have_changed)
        if counts(None, "__class__") or counts(None, "__dict__"):
            yield Look(None, "the class of an object, or its dict", lambda: self._changed_types() is not None)
        for place in self._places.all():
            if counts(key := (id(place.table), place.name), place.name):
                now = partial(place.table.get, place.name, MISSING)
                yield Look(key, Origin(place.origin, place.name), partial(is_other, now, place.then))
        yield from self._classes.looks(counts)
        for entry in held:
            if counts(key := (id(entry.value), None), last_name(entry.origin)):
                yield Look(key, f"what is in {_words(entry)}", partial(_holds_others, self._equality, entry))
        yield from self._functions.looks(counts)
        for key, asked in self._asked:
            if counts(key, key[1] or last_name(asked.origin)):
                yield Look(key, asked.origin, partial(is_other, partial(asked.ask, *asked.of), asked.then))

    def _set_types(self, reads: ReadSet) -> None:
        root = reads.root()
        modules = [
            (seen, seen.get()) for seen in reads.seen.values() if seen.kind is Kind.MODULE and seen.get() is not root
        ]
        self._objects, self._types = [value for _, value in modules], [seen.cls for seen, _ in modules]
        self._type_origins = [seen.origin for seen, _ in modules]
        owners = [(value, seen.table) for seen, value in modules if is_table_of(seen.table, value)]
        self._owners, self._own_tables = [value for value, _ in owners], [table for _, table in owners]
        self._weak = [
            (
                seen.ref or seen.get,
                seen.cls,
                seen.table if seen.get() is not root and is_table_of(seen.table, seen.get()) else None,
                seen.origin,
            )
            for seen in reads.seen.values()
            if seen.kind is not Kind.MODULE or seen.get() is root
        ]
        whole = root is not None and any(seen.every and seen.get() is root for seen in reads.seen.values())
        self._root_names = set(root.__dict__) if whole and root is not None else None

    def changed(self, module: torch.nn.Module) -> str | None:
        """What is different for a call of ``module`` now, in words, or None."""
        root = self._root()
        self.what = None
        if root is not module:
            return "another module is in its place"
        try:
            return (
                self._changed_types()
                or self._changed_places()
                or self._changed_root(root)
                or self._changed_marks()
                or self._classes.changed()
                or self._changed_parts()
                or self._changed_contents()
                or self._changed_functions()
                or self._changed_values()
                or (self._pattern.changed() if self._pattern is not None else None)
                or self._hooks.changed()
            )
        except Exception as error:
            return f"what the call read can't be compared any more ({type(error).__name__}: {error})"

    def decided(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether a call with these tensors takes the ways that the recorded one took; none of them is
        one that was found elsewhere.
        """
        return not self._finds_one_of(inputs) and (self.decisions is None or self.decisions.hold(inputs))

    def _finds_one_of(self, tensors: Sequence[torch.Tensor]) -> bool:
        """Whether one of these was found elsewhere, too."""
        ids = set(map(id, tensors))
        return not ids.isdisjoint(self._fixed) or any(
            not self._told_apart[found]() for found in ids & self._told_apart.keys()
        )

    def keeps_more_than(self, module: torch.nn.Module) -> bool:
        """Whether it holds tensors, or modules that are ``module``'s no more: for a change that is taken back it isn't
        worth their memory.
        """
        below = set(map(id, module.modules()))
        return bool(self._fixed) or not all(id(value) in below for value in self._objects)

    def keeps_alive(self) -> bool:
        """Whether it may be the last to hold objects to which the code refers weakly, to ask whether they are there."""
        return any(ref() is not None for ref in self._referred)

    def reader(self) -> Reader | None:
        """Who looked first at what has changed last; None where that isn't known."""
        return None if self.what is None else self._readers.get(self.what)

    def homes_of(self, code: CodeType) -> list[tuple[dict[str, Any], str]]:
        """The tables in which functions with this code were found, with their names there."""
        return [
            (place.table, place.name)
            for place in self._places.all()
            if type(place.table) is dict and code_of(place.then) is code
        ]

    def apart_from(self, table: dict[Any, Any]) -> Guard:
        """A copy that doesn't watch what is in this table."""
        copied = self._copy()
        copied._left_out |= {(id(table), place.name) for place in self._places.all() if place.table is table}
        return copied

    def leaving(self, keys: Collection[Key]) -> Guard:
        """A copy that doesn't watch these places."""
        copied = self._copy()
        copied._left_out |= frozenset(keys)
        return copied

    def steady(self, module: torch.nn.Module) -> Guard | None:
        """A copy that doesn't watch what is different for a call of ``module`` now;
        None where there is no end of that.
        """
        copied = self._copy()
        for _ in range(_UNSTEADY):
            if copied.changed(module) is None:
                return copied
            if (what := copied.what) is None:
                return None
            copied._left_out |= {what}
        return None

    def _copy(self) -> Guard:
        """One that looks for itself: what it leaves out is no reason for this one not to."""
        copied = copy.copy(self)
        copied._attributes, copied._parts = copy.copy(self._attributes), copy.copy(self._parts)
        return copied

    # -- each kind of place -----------------------------------------------------------------------------------------

    def _changed_types(self) -> str | None:
        types = list(map(type, self._objects))
        if not all(map(operator.is_, types, self._types)):
            for index in itertools.compress(itertools.count(), map(operator.is_not, types, self._types)):
                if not self._equality.same_class(types[index], self._types[index]):
                    return f"the class of {self._type_origins[index]} changed"
        if not all(map(operator.is_, map(_dict_of, self._owners), self._own_tables)):
            return "a layer has another dict of attributes"
        for get, cls, table, origin in self._weak:
            value = get()
            if value is not None and type(value) is not cls:
                return f"the class of {origin if origin is not None else 'the module'} changed"
            if value is not None and table is not None and not is_table_of(table, value):
                return f"{origin} has another dict of attributes"
        return None

    def _changed_places(self) -> str | None:
        written = self._attributes.written()
        if (place := self._places.changed(self._left_out, written)) is not None:
            self.what = None if place.name in HOOKING else (id(place.table), place.name)
            return f"{Origin(place.origin, place.name)} changed"
        if written != []:
            if (reason := self._sized.changed()) is not None:
                return reason
            self._attributes.settle()
        return None

    def _changed_root(self, root: torch.nn.Module) -> str | None:
        own = root.__dict__
        if self._root_names is not None and own.keys() != self._root_names:
            return "the module has other attributes"
        for name, then in self._root_places.items():
            now = own.get(name, MISSING)
            if now is not then and not self._same(now, then):
                return f"{name} changed"
        return None

    def _changed_marks(self) -> str | None:
        for table, name, then, marks in self._marked:
            now = table.get(name)
            if not then(now) and (not isinstance(now, torch.Tensor) or not self._equality.same_marks(now, marks)):
                return f"what was put on the {name} of a layer changed"
        return None

    def _changed_parts(self) -> str | None:
        """Modules' parameters, buffers and children, and what is in other dicts."""
        if self._parts.written() == []:
            return None
        if self._unmarked.weights_changed():
            return "what was put on a weight changed"
        different = self._dicts.different()
        if (reason := self._changed_items(different)) is not None:
            return reason
        if any(self._empty) or list(map(len, self._counted_tables)) != self._counts:
            origin = next(origin for table, count, origin in self._counted if len(table) != count)
            return f"{origin if origin is not None else 'the module'} has other parameters, buffers or children"
        if not different:  # what is as good as what was there may change in itself
            self._parts.settle()
        return None

    def _changed_items(self, different: Iterable[Held]) -> str | None:
        for held in different:
            if (
                not self._equality.same_items(held.value, held.before, held.kind)
                and (id(held.value), None) not in self._left_out
            ):
                self.what = id(held.value), None
                return f"what is in {_words(held)} changed"
        return None

    def _changed_contents(self) -> str | None:
        if (reason := self._changed_items(self._lists.different())) is not None:
            return reason
        full = len(self._others) - (0 if any(self._without_any) else len(self._without_any))
        for held in self._others[:full]:
            if not self._equality.same_items(held.value, held.before, held.kind):
                return f"what is in {_words(held)} changed"
        return None

    def _changed_functions(self) -> str | None:
        if (found := self._functions.changed(self._left_out)) is None:
            return None
        reason, self.what = found
        return reason

    def _changed_values(self) -> str | None:
        for key, asked in self._asked:
            now = asked.ask(*asked.of)
            if now is not asked.then and not self._same(now, asked.then) and key not in self._left_out:
                self.what = key
                return f"{asked.origin} changed"
        return None


def _attribute(ref: weakref.ref[torch.nn.Module], name: str) -> Any:
    root = ref()
    return MISSING if root is None else vars(root).get(name, MISSING)


def _holds_others(equality: Equality, held: Held) -> bool:
    return not equality.same_items(held.value, held.before, held.kind)


def _words(held: Held) -> str:
    return "the module" if held.origin is None else str(held.origin)
