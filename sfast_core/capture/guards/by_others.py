"""What a recorded call reads that code which runs live in it may change, behind the guard's look at it: whatever
functions of others looked at that are recorded with the model's code, and what that read by the names that live code
sets.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from .equality import Equality
from .given import itself
from .notes import MISSING, Held, Place, content_of
from .origin import Origin, last_name
from .read_set import ReadSet
from .readers import Key, Reader

if TYPE_CHECKING:
    import weakref

    import torch


class Change(NamedTuple):
    """Something that is another by now.

    Attributes:
        key: its place, where a reader is known by that.
        others: the kind of the function of others that read it; None where the model's own code did.
        what: in words.
    """

    key: Key | None
    others: Any
    what: str


class ByOthers:
    """These few dozen places, out of a guard's thousands.

    Args:
        readers: of everything that was read.
        places: names in tables.
        held: lists and the like, whose items or keys were read.
        cells: variables that functions close over, what was in them, and whose they are.
        classes: what each class and its bases have by a name.
        equality: the guard's.
        set_live: whether code that runs live sets something by a name, or changes what is in it.
        root: the module that is called, and what was read of its own attributes.
        bound: weights that the program reads: the table of each, by the table's id and the name.
        hooks: says whether modules have other hooks.

    Attributes:
        what: the place of what was found to have changed last, where a reader is known by it.
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
        set_live: Callable[[Any], bool],
        root: tuple[weakref.ref[torch.nn.Module], Mapping[str, Any]],
        bound: Mapping[tuple[int, str], dict[str, Any]],
        hooks: Callable[[], str | None],
    ) -> None:
        self._theirs = theirs = {key: reader.others for key, reader in readers.items() if reader.others is not None}

        def counts(key: Key, name: Any) -> bool:
            return key in theirs or set_live(name)

        key: Key
        self._places = [(key, place) for place in places if counts(key := (id(place.table), place.name), place.name)]
        self._held = [(key, entry) for entry in held if counts(key := (id(entry.value), None), last_name(entry.origin))]
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
        self._root, own = root
        self._own = [(name, then) for name, then in own.items() if set_live(name)]
        self._weights = [(table, name) for (_, name), table in bound.items() if set_live(name)]
        self._hooks = hooks if set_live("_forward_hooks") else None
        self._equality = equality
        self._keys = frozenset(key for each in (self._places, self._held, self._cells) for key, *_ in each)

    def __bool__(self) -> bool:
        return bool(
            self._places
            or self._held
            or self._cells
            or self._classes
            or self._own
            or self._weights
            or self._hooks is not None
        )

    def watch(self) -> Callable[[], Change | None]:
        """Says from now on what is another, also whether others have come into the places of weights."""
        return partial(self._noted, [table.get(name) for table, name in self._weights])

    def may_be_set(self, key: Key | None) -> bool:
        """Whether this is a place that live code may set and the model's own code reads."""
        return key in self._keys and key not in self._theirs

    def _noted(self, weights: Sequence[Any]) -> Change | None:
        found = self._changed(weights)
        self.what = None if found is None else found.key
        return found

    def _changed(self, weights: Sequence[Any]) -> Change | None:
        same, root = self._equality.same, self._root()
        for name, then in self._own if root is not None else ():
            now = vars(root).get(name, MISSING)
            if now is not then and not same(now, then):
                return Change(None, None, name)
        for (table, name), then in zip(self._weights, weights, strict=True):
            if table.get(name) is not then:
                return Change(None, None, f"the {name} of a layer")
        if self._hooks is not None and (reason := self._hooks()) is not None:
            return Change(None, None, reason)
        for key, place in self._places:
            now = place.table.get(place.name, MISSING)
            if now is not place.then and not same(now, place.then):
                return self._change(key, str(Origin(place.origin, place.name)))
        for key, space, name, then, cls in self._classes:
            now = itself(space.get(name, MISSING))
            if now is not then and not same(now, then):
                return self._change(key, f"{cls}.{name}")
        for key, held in self._held:
            if not self._equality.same_items(held.value, held.before, held.kind):
                return self._change(key, f"what is in {held.origin}")
        for key, cell, content, seen in self._cells:
            now = content_of(cell)
            if now is not content and not same(now, content):
                return self._change(key, f"what {seen.origin or seen.function.__qualname__} closes over")
        return None

    def _change(self, key: Key, what: str) -> Change:
        return Change(key, self._theirs.get(key), what)


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
