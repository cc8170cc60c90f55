"""Does one guard look at all that another one does? Then whatever that would find, it finds, too."""

from __future__ import annotations

from typing import Any

from .guard import Guard


def covers(guard: Guard, other: Guard) -> bool:
    """Whether each place, container and function that ``other`` watches is watched by ``guard``, and each question
    asked by it.
    """
    return _extent(other) <= _extent(guard)


def _extent(guard: Guard) -> set[Any]:
    held = [*guard._lists.values, *guard._dicts.values, *(entry.value for entry in guard._others)]
    return {
        *((id(place.table), place.name) for place in guard._places.all()),
        *guard._root_places,
        *(("in", id(value)) for value in held),
        *(("in", id(table)) for table in (*guard._sized.tables, *(table for table, *_ in guard._counted))),
        *(
            ("asked", str(asked.origin), name, str(asked.then)) for (_, name), asked in guard._asked
        ),  # questions are made anew for each call
        *guard._functions.codes,
    }
