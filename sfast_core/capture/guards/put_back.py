"""Undoes what a recorded call has left behind that came to nothing and is made once more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .kinds import Kind
from .notes import MISSING, as_it_was, content_of
from .read_set import ReadSet


def put_back(reads: ReadSet) -> None:
    """Have what the call came by hold what it held when it was first seen: attributes, lists and dicts, globals, what
    classes have, and what functions close over. What is in tensors stays.
    """
    for seen in reads.seen.values():
        if seen.table is not None and not seen.made and seen.get() is not None:
            for table, before in ((seen.table, seen.before), *seen.parts):
                _fill(table, before)
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
