"""What a recorded call reads that code which runs live in it may change, behind the guard's look at it: whatever
functions of others looked at that are recorded with the model's code, and what that read by the names that live code
sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple

from .notes import MISSING, content_of
from .origin import Origin
from .read_set import ReadSet
from .readers import Key, Reader


class Change(NamedTuple):
    """Something that has changed by now.

    Attributes:
        key: its place, where a reader is known by that.
        others: the kind of the function of others that read it; None where the model's own code did.
        what: in words.
    """

    key: Key | None
    others: Any
    what: str


class Look(NamedTuple):
    """One place that a guard compares.

    Attributes:
        key: by which its reader is known, or None.
        what: it is, in words.
        is_other: whether something else is there by now.
    """

    key: Key | None
    what: Any
    is_other: Callable[[], bool]


#: Whether a place counts, by its key and by the name by which code would set it; None: any may be that.
Counts = Callable[[Key | None, Any], bool]


def differs(same: Callable[[Any, Any], bool], now: Callable[[], Any], then: Any) -> bool:
    """Whether ``now()`` isn't what was there ``then``, nor the same as that."""
    found = now()
    return found is not then and not same(found, then)


class ByOthers:
    """The few dozen places, out of a guard's thousands, that code which runs live may change.

    Args:
        readers: of everything that was read.
        looks: all places that count, but for weights.
        weights: that the program reads: the table and the name of each.
        set_live: whether code that runs live sets something by a name, or changes what is in it; None where none does.

    Attributes:
        what: the place of what was found to have changed last, where a reader is known by it.
    """

    what: Key | None = None

    def __init__(
        self,
        readers: Mapping[Key, Reader],
        looks: Callable[[Counts], Iterable[Look]],
        weights: Iterable[tuple[dict[str, Any], str]],
        set_live: Callable[[Any], bool] | None,
    ) -> None:
        self._theirs = theirs = _kinds(readers)
        sets = set_live or frozenset[Any]().__contains__
        self._looks = list(looks(lambda key, name: key in theirs or sets(name))) if theirs or set_live else []
        self._weights = [(table, name) for table, name in weights if sets(name)] if set_live else []
        self._keys = frozenset(look.key for look in self._looks)

    def __bool__(self) -> bool:
        return bool(self._looks or self._weights)

    def watch(self) -> Callable[[], Change | None]:
        """Says from now on what is another, also whether others have come into the places of weights."""
        weights = [
            Look(None, f"the {name} of a layer", partial(_is_another, table, name, table.get(name)))
            for table, name in self._weights
        ]
        return partial(self._noted, [*weights, *self._looks])

    def may_be_set(self, key: Key | None) -> bool:
        """Whether this is a place that live code may set and the model's own code reads."""
        return key is not None and key in self._keys and key not in self._theirs

    def _noted(self, looks: Iterable[Look]) -> Change | None:
        found = _first(looks, self._theirs)
        self.what = None if found is None else found.key
        return found


def _is_another(table: dict[str, Any], name: str, then: Any) -> bool:
    return table.get(name) is not then


class Meanwhile:
    """What such functions have looked at so far in a call that is being recorded, as it is now.

    Args:
        reads: of the call.
    """

    def __init__(self, reads: ReadSet) -> None:
        self._theirs = _kinds(reads.readers.of)
        found = _looked_at(reads, self._theirs) if self._theirs else ()
        self._looks = [Look(key, what, partial(differs, _alike, now, now())) for key, what, now in found]

    def changed(self) -> Change | None:
        """The first thing that has changed since, or None."""
        return _first(self._looks, self._theirs)


def _kinds(readers: Mapping[Key, Reader]) -> dict[Key, Any]:
    """Which kinds of functions of others read something, by its key."""
    return {key: reader.others for key, reader in readers.items() if reader.others is not None}


def _first(looks: Iterable[Look], theirs: Mapping[Key, Any]) -> Change | None:
    for key, what, is_other in looks:
        if is_other():
            return Change(key, None if key is None else theirs.get(key), str(what))
    return None


def _looked_at(reads: ReadSet, theirs: Mapping[Key, Any]) -> Iterator[tuple[Key, Any, Callable[[], Any]]]:
    """The places among ``theirs``: the key of each, what it is, and what tells what is there now."""
    tables = {id(seen.table): (seen.table, seen.origin) for seen in reads.seen.values() if seen.table is not None}
    tables |= {id(place.table): (place.table, place.origin) for place in reads.places.values()}
    for key in theirs:
        of, name = key
        if of in tables:
            table, origin = tables[of]
            yield key, Origin(origin, name), partial(table.get, name, MISSING)
        elif name is None and of in reads.held:
            yield key, f"what is in {reads.held[of].origin}", partial(_content, reads.held[of].value)
    for function in reads.functions.values():
        for cell, _ in function.cells:
            if (key := (id(cell), None)) in theirs:
                words = f"what {function.origin or function.function.__qualname__} closes over"
                yield key, words, partial(content_of, cell)
    for cls, name in (*reads.classes, *reads.put):
        if (key := (id(cls), name)) in theirs:
            yield key, f"{cls.__qualname__}.{name}", partial(_of_class, cls, name)


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
