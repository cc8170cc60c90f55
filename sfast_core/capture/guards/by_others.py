"""What a recorded call reads that code which runs live in it may change, behind the guard's look at it.

That is what functions of others looked at, and of what the model's own code did the names that live code sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from .equality import Equality
from .given import itself
from .notes import MISSING, Held, Place, content_of
from .origin import Origin
from .read_set import ReadSet
from .readers import Key, Reader


class ByOthers:
    """The few dozen such places out of a guard's thousands.

    Args:
        readers: of everything that was read.
        places: names in tables.
        held: lists and dicts whose content was read.
        cells: variables that functions close over, what was in them, and whose they are.
        classes: what each class and its bases have by a name.
        equality: the guard's.
        sets: whether live code may set something of this name, or change what is in it; None: there is none.

    Attributes:
        what: the place of what was found to have changed last.
    """

    what: Key | None = None

    def __init__(
        self,
        readers: Mapping[Key, Reader],
        places: Iterable[Place],
        held: Iterable[Held],
        cells: Iterable[tuple[Any, Any, Any]],
        classes: Mapping[tuple[type, str], list[Any]],
        equality: Equality,
        sets: Callable[[Any], bool] | None,
    ) -> None:
        self._theirs = theirs = {key: reader.others for key, reader in readers.items() if reader.others is not None}

        def counts(key: Key, name: Any) -> bool:
            return key in theirs or (sets is not None and sets(name))

        key: Key
        named = [((id(place.table), place.name), place) for place in places] if theirs or sets else []
        self._places = [(key, place) for key, place in named if counts(key, place.name)]
        self._held = [
            (key, entry)
            for entry in held
            if counts(key := (id(entry.value), None), None if entry.origin is None else entry.origin.name)
        ]
        self._cells = [
            (key, cell, content, seen)
            for cell, content, seen in cells
            if counts(key := (id(cell), None), _name_of(cell, seen))
        ]
        self._classes = [
            (key, vars(owner), name, then, cls.__qualname__)
            for (cls, name), found in classes.items()
            if counts(key := (id(cls), name), name)
            for owner, then in zip(cls.__mro__[:-1], found, strict=True)
        ]
        self._keys = frozenset(key for each in (self._places, self._held, self._cells) for key, *_ in each)
        self._equality = equality

    def __bool__(self) -> bool:
        return bool(self._places or self._held or self._cells or self._classes)

    def changed(self) -> tuple[Any, str] | None:
        """The kind of the function that read something that is another by now, None where the model's code did, and
        what, in words; None where nothing is.
        """
        found = self._changed()
        self.what = None if found is None else found[0]
        return None if found is None else (self._theirs.get(found[0]), found[1])

    def set_live(self, key: Key | None) -> bool:
        """Whether this is a place that live code may set and the model's code reads."""
        return key in self._keys and key not in self._theirs

    def _changed(self) -> tuple[Key, str] | None:
        same = self._equality.same
        for key, place in self._places:
            now = place.table.get(place.name, MISSING)
            if now is not place.then and not same(now, place.then):
                return key, str(Origin(place.origin, place.name))
        for key, space, name, then, cls in self._classes:
            now = itself(space.get(name, MISSING))
            if now is not then and not same(now, then):
                return key, f"{cls}.{name}"
        for key, held in self._held:
            if not self._equality.same_items(held.value, held.before, held.kind):
                return key, f"what is in {held.origin}"
        for key, cell, content, seen in self._cells:
            now = content_of(cell)
            if now is not content and not same(now, content):
                return key, f"what {seen.origin or seen.function.__qualname__} closes over"
        return None


def _name_of(cell: Any, seen: Any) -> str | None:
    """The variable that a cell is for a function."""
    cells = seen.function.__closure__ or ()
    return next((name for name, each in zip(seen.code.co_freevars, cells, strict=False) if each is cell), None)


class Meanwhile:
    """What such functions have looked at so far in a call that is being recorded, as it is now.

    Args:
        reads: of the call.
    """

    def __init__(self, reads: ReadSet) -> None:
        theirs = {key: reader.others for key, reader in reads.readers.of.items() if reader.others is not None}
        self._places: list[tuple[Any, str, Callable[[], Any]]] = []
        self._now: list[Any] = []
        if not theirs:
            return
        tables = {id(seen.table): (seen.table, seen.origin) for seen in reads.seen.values() if seen.table is not None}
        tables |= {id(place.table): (place.table, place.origin) for place in reads.places.values()}
        for (of, name), kind in theirs.items():
            if of in tables:
                table, origin = tables[of]
                self._places.append((kind, str(Origin(origin, name)), partial(table.get, name, MISSING)))
            elif name is None and of in reads.held:
                held = reads.held[of]
                self._places.append((kind, f"what is in {held.origin}", partial(_content, held.value)))
        for function in reads.functions.values():
            for cell, _ in function.cells:
                if (kind := theirs.get((id(cell), None))) is not None:
                    words = f"what {function.origin or function.function.__qualname__} closes over"
                    self._places.append((kind, words, partial(content_of, cell)))
        for cls, name in (*reads.classes, *reads.put):
            if (kind := theirs.get((id(cls), name))) is not None:
                self._places.append((kind, f"{cls.__qualname__}.{name}", partial(_of_class, cls, name)))
        self._now = [get() for _, _, get in self._places]

    def changed(self) -> tuple[Any, str] | None:
        """The kind of the function that has looked at something that is another since, and what, in words."""
        for (kind, what, get), then in zip(self._places, self._now, strict=True):
            if not _alike(get(), then):
                return kind, what
        return None


def _of_class(cls: type, name: str) -> Any:
    """As it is there: a method that is asked for is another object each time."""
    return next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), MISSING)


def _content(value: Any) -> Any:
    return tuple(value.items()) if isinstance(value, dict) else tuple(value)


def _alike(now: Any, then: Any) -> bool:
    if now is then:
        return True
    if type(now) is tuple and type(then) is tuple:
        return len(now) == len(then) and all(map(_alike, now, then))
    return type(now) is type(then) and isinstance(now, (bool, int, float, str)) and now == then
