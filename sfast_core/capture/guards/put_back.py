"""Undoes what a recorded call has left behind that came to nothing and is made once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .equality import Equality
from .kinds import Kind
from .notes import MISSING, Held, SeenFunction, as_it_was, content_of
from .read_set import ReadSet
from .seen_objects import OF_HOOKS


def stays(reads: ReadSet) -> bool:
    """Whether the call has changed something that :func:`put_back` leaves as it is: what is asked for, containers of
    other classes, how functions are made, what a cache has kept.
    """
    same = Equality(reads, exact=True)
    kept = [held for held in reads.held.values() if not _fills(held)]
    return (
        any(not same.same(asked.ask(*asked.of), asked.then) for asked in [*reads.asked.values()])
        or any(not same.same_items(held.value, held.before, held.kind) for held in kept)
        or not all(map(_is_made_as_before, reads.functions.values()))
        or reads.filled() is not None
    )


def put_back(reads: ReadSet) -> None:
    """Have what the call came by hold what it held when it was first seen: classes, attributes, lists and dicts,
    globals, what classes have, forward hooks, and what functions close over. What is in tensors stays.
    """
    for seen in reads.seen.values():
        value = seen.get()
        if value is not None and type(value) is not seen.cls:  # a parametrised layer has one of its own
            value.__class__ = seen.cls
        if seen.table is not None and not seen.made and value is not None:
            for table, before in ((seen.table, seen.before), *seen.parts):
                _fill(table, before)
    _put_back_hooks(reads)
    for held in reads.held.values():
        if type(held.value) is dict:
            _fill(held.value, dict(zip(*held.before, strict=True)))
        elif held.kind is Kind.SEQUENCE and hasattr(held.value, "clear") and not _alike(held.value, held.before):
            held.value.clear()
            held.value.extend(held.before)
        elif type(held.value) is set and held.value != set(held.before):
            held.value.clear()
            held.value.update(held.before)
    for place in reads.places.values():
        if type(place.table) is dict:
            _set(place.table, place.name, place.then)
    for cls, attributes in reads.spaces.items():
        for name in reads.stored & (vars(cls).keys() | attributes.keys()):
            then = attributes.get(name, MISSING)
            if then is MISSING and name in vars(cls):
                delattr(cls, name)
            elif then is not MISSING and vars(cls).get(name) is not then:
                setattr(cls, name, then)
    for function in reads.functions.values():
        for cell, then in function.cells:
            if then is not MISSING and content_of(cell) is not then:
                cell.cell_contents = then


def _put_back_hooks(reads: ReadSet) -> None:
    """Take off the forward hooks that the call has put on modules. A hook that it took off isn't there any more, and
    the call takes it off again.
    """
    before = {(id(table), part): hooks for table, part, hooks, _ in reads.hooks}
    tables = [(table, part) for table, part, _, _ in reads.hooks]
    tables += [
        (seen.table, part)
        for seen in reads.seen.values()
        if seen.kind is Kind.MODULE and seen.table is not None
        for part in OF_HOOKS
    ]
    for table, part in tables:
        hooks = table.get(part) or {}
        for key in hooks.keys() - before.get((id(table), part), {}).keys():
            del hooks[key]


def _fills(held: Held) -> bool:
    """Whether :func:`put_back` fills this container."""
    return type(held.value) in (dict, set) or (held.kind is Kind.SEQUENCE and hasattr(held.value, "clear"))


def _is_made_as_before(seen: SeenFunction) -> bool:
    function, keywords = seen.function, seen.keywords or {}
    now = function.__kwdefaults__ or {}
    return (
        function.__code__ is seen.code
        and function.__defaults__ is seen.defaults
        and now.keys() == keywords.keys()
        and all(now[name] is keywords[name] for name in now)
    )


def _fill(table: dict[Any, Any], before: Mapping[Any, Any]) -> None:
    if not _alike(table.keys(), before.keys()):  # in its order
        for name in [*table]:
            if name not in before:
                del table[name]
    for name, value in before.items():
        _set(table, name, as_it_was(value))


def _set(table: dict[Any, Any], name: Any, then: Any) -> None:
    if then is MISSING:
        table.pop(name, None)
    elif table.get(name, MISSING) is not then:
        table[name] = then


def _alike(now: Any, before: Any) -> bool:
    return len(now) == len(before) and all(a is b for a, b in zip(now, before, strict=True))
