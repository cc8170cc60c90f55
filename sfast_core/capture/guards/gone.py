"""What a recorded call made for itself and let go: only its read set still holds it, or knows that it is gone."""

from __future__ import annotations

import sys
from collections import Counter
from typing import Any

from .asking import name_of
from .kinds import Kind
from .notes import Seen
from .seen_values import SeenValues


def drop_gone(reads: SeenValues) -> None:
    """Take all of it out of the read set: what is made anew by each call steers none, and may hold the model or the
    call's tensors.

    One that is gone held others, so this goes on for as long as something goes.
    """
    reads.asked = {
        key: asked for key, asked in reads.asked.items() if asked.ask is not name_of or asked.of[-1]() is not None
    }
    reads.marked = {key: marked for key, marked in reads.marked.items() if marked.ref() is not None}
    first = True
    while _objects(reads, first) or _tables(reads) or _functions(reads) or _carriers(reads):
        first = False


def _objects(reads: SeenValues, first: bool) -> bool:
    gone = [key for key, seen in reads.seen.items() if _is_gone(seen)]
    for key in gone:
        del reads.seen[key]
    if gone or first:  # at first there are notes of some in whose memory a later object was made
        there = set(map(id, reads.seen.values()))
        reads.asked = {
            key: asked
            for key, asked in reads.asked.items()
            if not isinstance(asked.of[-1], Seen) or id(asked.of[-1]) in there
        }
    return bool(gone)


def _is_gone(seen: Seen) -> bool:
    if seen.ref is not None:
        return seen.ref() is None
    # No weak reference to it can be had: it is known here, in the call of getrefcount, and nowhere else.
    return seen.kind is Kind.OBJECT and sys.getrefcount(seen.value) <= 2


def _tables(reads: SeenValues) -> bool:
    """Containers, modules' parts, and the attributes that functions and containers were given: those that only their
    notes hold.
    """
    notes = Counter([table for table, _ in reads.places])
    notes.update(reads.held.keys())
    notes.update(reads.counted.keys())
    in_places = [key for key, place in reads.places.items() if sys.getrefcount(place.table) <= notes[key[0]] + 1]
    in_held = [key for key, held in reads.held.items() if sys.getrefcount(held.value) <= notes[key] + 1]
    in_counted = [key for key, counted in reads.counted.items() if sys.getrefcount(counted[0]) <= notes[key] + 1]
    return any([_drop(reads.places, in_places), _drop(reads.held, in_held), _drop(reads.counted, in_counted)])


def _functions(reads: SeenValues) -> bool:
    caches = [key for key in reads.cached if sys.getrefcount(reads.cached[key]) <= 2]
    gone = [key for key, seen in reads.functions.items() if sys.getrefcount(seen.function) <= 2]
    return any([_drop(reads.cached, caches), _drop(reads.functions, gone)])


def _drop(table: dict[Any, Any], keys: list[Any]) -> bool:
    for key in keys:
        del table[key]
    return bool(keys)


def _carriers(reads: SeenValues) -> bool:
    """Tables of attributes whose owner has gone."""
    return reads.carriers.drop_gone(Counter([table for table, _ in reads.places]))
