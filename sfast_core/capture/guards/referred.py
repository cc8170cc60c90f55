"""What code refers to weakly: it dies when its owners let go of it, whatever is noted of it here."""

from __future__ import annotations

import weakref
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, NamedTuple

from .kinds import Kind, kind_of
from .origin import Origin

if TYPE_CHECKING:
    from .seen_values import SeenValues

#: These are held weakly here, or not at all; a class goes when Python's collector looks for it.
_NOT_HELD = (Kind.OBJECT, Kind.TENSOR, Kind.CLASS)


class Referred(NamedTuple):
    """A weak reference, and where it was found."""

    ref: weakref.ref[Any]
    origin: Origin | None


def refers(reference: weakref.ref[Any], origin: Origin | None) -> Iterator[tuple[int, Referred]]:
    """What a weak reference leads to, by ids: the object and the function of a method."""
    to = reference()
    if isinstance(reference, weakref.WeakMethod):
        parts = [] if to is None else [to.__self__, to.__func__]
        yield from ((id(part), Referred(weakref.ref(part), origin)) for part in parts)
    elif to is not None:
        yield id(to), Referred(reference, origin)


def let_go_of_the_unowned(reads: SeenValues) -> list[Origin | None]:
    """Take out of the read set what it would keep alive: what is referred to weakly, and has no owner in what was read
    whose change would be noticed. Returns where the references to it are.
    """
    held = [
        (key, referred.origin)
        for key, referred in reads.weakly.items()
        if (value := referred.ref()) is not None and kind_of(value) not in _NOT_HELD
    ]
    if not held:
        return []
    owned = _owned(reads)
    unowned = {key: origin for key, origin in held if key not in owned}
    for key in unowned:
        reads.seen.pop(key, None)
        reads.held.pop(key, None)
        reads.functions.pop(key, None)
    reads.asked = {key: asked for key, asked in reads.asked.items() if key[0] not in unowned}
    return list(unowned.values())


def _owned(reads: SeenValues) -> set[int]:
    """The ids of what was found in what is compared, or is a part of the model."""
    root = reads.root()
    owned = {id(place.then) for place in reads.places.values() if place.read}
    owned.update(id(value) for seen in reads.seen.values() for value in seen.found.values())
    owned.update(id(value) for values in reads.classes.values() for value in values)
    owned.update(id(content) for function in reads.functions.values() for _, content in function.cells)
    for held in reads.held.values():
        if held.read:
            owned.update(map(id, held.before[1] if held.kind is Kind.MAPPING else held.before))
    return owned if root is None else owned.union(map(id, root.modules()))
