"""Where functions of others lead to what a call has read: by which steps from a function, so that the same place is
found below another call's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import FunctionType, MethodType
from typing import Any

import torch

from .kinds import ByValue, ContentNote, Kind, kind_of
from .notes import MISSING, Place, as_it_was
from .read_set import ReadSet
from .readers import Key

Step = tuple[str, Any]  #: how one gets from a value to one in it: see :data:`_STEPS`
Lead = tuple[str, tuple[Step, ...]]  #: a function's place among a call's options, in words, and the steps from there

_LEADING = frozenset(
    (Kind.TENSOR, Kind.SEQUENCE, Kind.MAPPING, Kind.FUNCTION, Kind.BOUND, Kind.PARTIAL, Kind.OBJECT)
)  #: what is more than a value by itself
_CHANGEABLE = (Kind.SEQUENCE, Kind.MAPPING, Kind.OBJECT)
_DEEPEST = 8
_MOST = 4096  # ways: a graph of objects with more isn't gone through at each call


def _attribute(value: Any, name: Any) -> Any:
    return object.__getattribute__(value, "__dict__")[name]


_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "attribute": _attribute,
    "item": lambda value, key: value[key],
    "closes over": lambda value, index: value.__closure__[index].cell_contents,
    "default": lambda value, index: value.__defaults__[index],
    "keyword": lambda value, name: value.__kwdefaults__[name],
    "self": lambda value, _: value.__self__,
    "method": lambda value, _: value.__func__,
    "partial": lambda value, name: getattr(value, name),
}


def followed(there: Mapping[str, Any], lead: Lead) -> Any:
    """What is at a place now, or MISSING; nothing is called for it.

    Args:
        there: a call's functions, by their places in words.
        lead: from one of them.
    """
    place, steps = lead
    value = there.get(place, MISSING)
    try:
        for how, what in steps:
            value = _STEPS[how](value, what)
    except (AttributeError, LookupError, TypeError, ValueError):
        return MISSING
    return value


class Pattern:
    """Which places lead to one and the same object: where a call writes to one, others may show it.

    Args:
        there: the functions of the call that runs now, by their places in words.
        objects: the ways, each with the object, list or dict that is there.
    """

    def __init__(self, there: Mapping[str, Any], objects: Sequence[tuple[Lead, Any]]) -> None:
        self._there, self._leads = there, [lead for lead, _ in objects]
        self._then = _which([value for _, value in objects])

    def changed(self) -> str | None:
        """Whether it is another one by now, in words."""
        now = _which([followed(self._there, lead) for lead in self._leads])
        return None if now == self._then else "which objects of other nodes are one and the same changed"


def _which(values: Sequence[Any]) -> list[int]:
    """For each value the index of the first that is the same object; -1 for nothing."""
    first: dict[int, int] = {}
    return [-1 if each is MISSING else first.setdefault(id(each), index) for index, each in enumerate(values)]


@dataclass(frozen=True)
class Placed:
    """Tensors that a call's signature finds by their places.

    Attributes:
        tensors: their ids.
        within: by their ids, the containers on the ways to them: whether all that is in one was read, and what was, by
            key. Who keeps a trace keeps none of these: the tensors are their owner's to let go.
        through: by their ids, the functions and objects on the ways: what they are is looked at where they are.
        places: of what these keep, as guards know places.
        pattern: which of the objects on all ways are one; None where that is all the same, since nothing is written.
    """

    tensors: frozenset[int] = frozenset()
    within: Mapping[int, tuple[bool, list[tuple[Any, Any]]]] = field(default_factory=dict)
    through: Mapping[int, Any] = field(default_factory=dict)
    places: frozenset[Key] = frozenset()
    pattern: Pattern | None = None

    def note(self, value: Any, noted: Callable[[Any], Any]) -> Any:
        """What is to be kept of one of these, and ``noted(item)`` of what is in a container; MISSING for others."""
        if id(value) in self.through:
            return ByValue(value)
        if id(value) not in self.within:
            return MISSING
        whole, items = self.within[id(value)]
        return ContentNote(type(value), [(key, noted(item)) for key, item in items], whole)


class Leads:
    """The ways from a call's functions of others to what the call read, along what it read.

    Args:
        reads: what the call has read; it is over.
        there: the table of those functions, by their places in words.
    """

    def __init__(self, reads: ReadSet, there: Mapping[str, Any]) -> None:
        self._reads, self.there = reads, there
        self._ways: dict[int, list[Lead]] = {}
        self._chains: dict[int, set[int]] = {}  # what is on the ways to each value, and it
        self._values: dict[int, Any] = {}
        self._keys: dict[int, set[Key]] = {}  # the places at which each value is
        self._by_table: dict[int, list[Place]] = {}
        self._outside: set[int] | None = None  # what something else leads to, too

    def to(self, value: Any) -> list[Lead]:
        """All ways to it; none where something else that was read leads there, too: then who keeps it can't be said."""
        if self._outside is None:
            self._outside = self._walk()
        found, chain = self._ways.get(id(value), []), self._chains.get(id(value), set())
        return found if self._outside.isdisjoint(chain) and self._reads.exact.isdisjoint(chain) else []

    def placed(self, tensors: Iterable[torch.Tensor], written: Sequence[Any] = ()) -> Placed:
        """What a trace finds by places, as far as all ways to it are known.

        Args:
            tensors: that it reads.
            written: objects, lists and dicts that it writes to.
        """
        found = [tensor for tensor in tensors if self.to(tensor)]
        on_the_way = set().union(*(self._chains[id(value)] for value in (*found, *written)))
        values = [self._values[key] for key in on_the_way if not isinstance(self._values[key], torch.Tensor)]
        within = [value for value in values if type(value) in (list, tuple, dict)]
        through = {id(value): value for value in values if type(value) not in (list, tuple, dict)}
        objects = [
            (lead, self._values[key])
            for key, leads in (self._ways.items() if written else ())
            if kind_of(self._values[key]) in _CHANGEABLE and type(self._values[key]) is not tuple
            for lead in leads
        ]
        return Placed(
            frozenset(map(id, found)),
            {id(value): (self._is_whole(value), self._content(value)) for value in within},
            through,
            frozenset(key for value in values for key in self._own_keys(value)),
            Pattern(self.there, objects) if objects else None,
        )

    def _own_keys(self, value: Any) -> Iterator[Key]:
        """The places of what an object, a function or a container keeps."""
        seen, function = self._reads.seen.get(id(value)), self._reads.functions.get(id(value))
        yield id(value), None
        if seen is not None and seen.get() is value and seen.table is not None:
            yield from ((id(seen.table), name) for name in seen.found)
            yield from ((id(seen.table), place.name) for place in self._by_table.get(id(seen.table), ()))
        if function is not None and function.function is value:
            yield from ((id(cell), None) for cell, _ in function.cells)
        yield from ((id(value), place.name) for place in self._by_table.get(id(value), ()))

    def keys(self, values: Iterable[Any]) -> set[Key]:
        """The places on the ways to these, as guards know places."""
        return {key for value in values for each in self._chains[id(value)] for key in self._keys.get(each, ())}

    def _walk(self) -> set[int]:
        reads = self._reads
        roots = [
            (place.name, place.then)
            for place in reads.places.values()
            if place.table is self.there and place.then is not MISSING
        ]
        outside: set[int] = set()
        if not roots:
            return outside
        for each in reads.places.values():
            if each.read and each.table is not self.there:
                self._by_table.setdefault(id(each.table), []).append(each)
        for name, function in roots:
            self._keys.setdefault(id(function), set()).add((id(self.there), name))
        walked: set[int] = set()
        waiting: list[tuple[Any, Lead, frozenset[int]]] = [
            (function, (name, ()), frozenset((id(function),))) for name, function in roots
        ]
        for value, (place, steps), chain in waiting:
            self._values[id(value)] = value
            self._ways.setdefault(id(value), []).append((place, steps))
            self._chains.setdefault(id(value), set()).update(chain)
            if isinstance(value, torch.Tensor) or len(steps) == _DEEPEST:
                continue
            walked.add(id(value))
            for step, child, key in self._below(value):
                if kind_of(child) not in _LEADING:
                    continue
                self._keys.setdefault(id(child), set()).add(key)
                if step is None:
                    outside.add(id(child))
                elif id(child) not in chain:
                    waiting.append((child, (place, (*steps, step)), chain | {id(child)}))
            if len(waiting) > _MOST:
                self._ways.clear()
                return outside
        return outside | {id(child) for parent, child in _edges(reads, self.there) if parent not in walked}

    def _below(self, value: Any) -> Iterator[tuple[Step | None, Any, Key]]:
        """What was read of a value, each with the step to it, None where there is none that another's could be found
        by; and its place as guards know it.
        """
        reads, own = self._reads, (id(value), None)
        if isinstance(value, MethodType):
            yield from ((("self", None), value.__self__, own), (("method", None), value.__func__, own))
        elif isinstance(value, functools.partial):
            yield from ((("partial", name), getattr(value, name), own) for name in ("func", "args", "keywords"))
        elif type(value) is FunctionType:
            if (function := reads.functions.get(id(value))) is not None and function.function is value:
                for index, (cell, then) in enumerate(function.cells):
                    yield ("closes over", index), then, (id(cell), None)
                yield from ((("default", index), then, own) for index, then in enumerate(function.defaults or ()))
                yield from ((("keyword", name), then, own) for name, then in (function.keywords or {}).items())
        elif type(value) in (list, tuple, dict):
            for key, item in self._content(value):
                yield (
                    (("item", key) if kind_of(key) is Kind.VALUE else None),
                    item,
                    (own if self._is_whole(value) else (id(value), key)),
                )
        elif kind_of(value) is Kind.OBJECT and (seen := reads.seen.get(id(value))) is not None and seen.get() is value:
            for name, then in seen.found.items():
                there = not seen.made and as_it_was(seen.before.get(name, MISSING)) is then
                yield (("attribute", name) if there else None), then, (id(seen.table), name)
            for place in self._by_table.get(id(seen.table), ()):
                yield ("attribute", place.name), place.then, (id(seen.table), place.name)

    def _is_whole(self, value: Any) -> bool:
        """Whether all that is in a container was read."""
        held = self._reads.held.get(id(value))
        return type(value) is tuple or (held is not None and held.read and held.value is value)

    def _content(self, value: Any) -> list[tuple[Any, Any]]:
        """What was read of what was in a container, by key or index."""
        if type(value) is tuple:
            return list(enumerate(value))
        if self._is_whole(value):
            before = self._reads.held[id(value)].before
            return list(zip(*before, strict=True)) if type(value) is dict else list(enumerate(before))
        return [(place.name, place.then) for place in self._by_table.get(id(value), ())]


def _edges(reads: ReadSet, there: Mapping[str, Any]) -> Iterator[tuple[int, Any]]:
    """All that was read, and the ids of what leads there; 0 for what has no place."""
    owners = {}
    for seen in reads.seen.values():
        if (owner := seen.get()) is not None:
            owners[id(seen.table)] = id(owner)
            for then in seen.found.values():
                yield id(owner), then
    for place in reads.places.values():
        if place.read and place.table is not there:
            yield owners.get(id(place.table), id(place.table)), place.then
    for held in reads.held.values():
        if held.read:
            for item in held.before[1] if held.kind is Kind.MAPPING else held.before:
                yield id(held.value), item
    for function in reads.functions.values():
        for then in (*(content for _, content in function.cells), *(function.defaults or ())):
            yield id(function.function), then
    for asked in reads.asked.values():
        yield 0, asked.then
