"""What functions of others read that are recorded with a model's code: those that run live beside them may change it in
the midst of a call, behind the guard's look at it.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from .equality import Equality
from .given import itself
from .notes import MISSING, Held, Place, content_of
from .origin import Origin
from .readers import Key, Reader


class ByOthers:
    """The few dozen places that such functions looked at first, out of a guard's thousands.

    Args:
        readers: of everything that was read.
        places: names in tables.
        held: lists and dicts whose content was read.
        cells: variables that functions close over, what was in them, and whose they are.
        classes: what each class and its bases have by a name.
        equality: the guard's.
    """

    def __init__(
        self,
        readers: Mapping[Key, Reader],
        places: Iterable[Place],
        held: Iterable[Held],
        cells: Iterable[tuple[Any, Any, Any]],
        classes: Mapping[tuple[type, str], list[Any]],
        equality: Equality,
    ) -> None:
        theirs = {key: reader.others for key, reader in readers.items() if reader.others is not None}
        named = [((id(place.table), place.name), place) for place in places] if theirs else []
        self._places = [(theirs[key], place) for key, place in named if key in theirs]
        self._held = [(theirs[id(entry.value), None], entry) for entry in held if (id(entry.value), None) in theirs]
        self._cells = [(theirs[id(cell[0]), None], *cell) for cell in cells if (id(cell[0]), None) in theirs]
        self._classes = [
            (theirs[key], vars(owner), name, then, cls.__qualname__)
            for (cls, name), found in classes.items()
            if (key := (id(cls), name)) in theirs
            for owner, then in zip(cls.__mro__[:-1], found, strict=True)
        ]
        self._equality = equality

    def __bool__(self) -> bool:
        return bool(self._places or self._held or self._cells or self._classes)

    def changed(self) -> tuple[Any, str] | None:
        """The kind of the function that read something that is another by now, and what, in words; None where nothing
        is.
        """
        same = self._equality.same
        for kind, place in self._places:
            now = place.table.get(place.name, MISSING)
            if now is not place.then and not same(now, place.then):
                return kind, str(Origin(place.origin, place.name))
        for kind, space, name, then, cls in self._classes:
            now = itself(space.get(name, MISSING))
            if now is not then and not same(now, then):
                return kind, f"{cls}.{name}"
        for kind, held in self._held:
            if not self._equality.same_items(held.value, held.before, held.kind):
                return kind, f"what is in {held.origin}"
        for kind, cell, content, seen in self._cells:
            now = content_of(cell)
            if now is not content and not same(now, content):
                return kind, f"what {seen.origin or seen.function.__qualname__} closes over"
        return None
