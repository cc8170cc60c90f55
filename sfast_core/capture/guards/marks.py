"""What others have put on tensors, as far as it is read: noted with the tensor, and gone with it where the notes alone
have it still.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from ...weights.part import STAMP, has_parts, is_stamped, stamped
from .kinds import TensorNote
from .notes import MISSING, Marked, Place, Table

_OTHERS = 3  # who have a tensor's dictionary besides its places: the tensor, its mark, and who counts them


class Reads(Protocol):
    """What is read, as far as it is needed here."""

    marked: dict[int, Marked]
    places: dict[tuple[int, Any], Place]


def mark(reads: Reads, tensor: torch.Tensor, table: Table) -> Marked:
    """Note that something is read that was put on a tensor: into its dictionary, ``table``."""
    known = reads.marked.get(id(tensor))
    if known is None or known.ref() is not tensor or known.table is not table:
        ref = weakref.ref(tensor, functools.partial(_let_go, weakref.ref(reads), id(tensor)))
        known = reads.marked[id(tensor)] = Marked(ref, table)
    return known


def _let_go(reads: weakref.ref[Reads], key: int, ref: weakref.ref[torch.Tensor]) -> None:
    """A tensor that something was put on has gone: what that is goes with it, where the notes alone have it.

    A call makes many, a quantised input each.

    Nothing is taken out: somebody may be going through what is read just now.
    """
    marked = None if (here := reads()) is None else here.marked.get(key)
    if here is None or marked is None or marked.ref is not ref:
        return
    found = (here.places.get((id(marked.table), name)) for name in marked.names)
    places = [place for place in found if place is not None and place.table is marked.table]
    if sys.getrefcount(marked.table) <= len(places) + _OTHERS:
        for place in places:
            place.table, place.then = {}, MISSING
        marked.table = {}


def marks_of(reads: Reads) -> dict[int, dict[str, Any]]:
    """What was read of what others had put on tensors, by the ids of these."""
    marked = {id(each.table): tensor for each in reads.marked.values() if (tensor := each.ref()) is not None}
    tables = {table: id(tensor) for table, tensor in marked.items()}
    parts = {table: _parts(tensor) for table, tensor in marked.items()}
    found: dict[int, dict[str, Any]] = {}
    for (table, name), place in reads.places.items() if tables else ():
        if table in tables and name not in parts[table]:
            found.setdefault(tables[table], {})[name] = (
                TensorNote(place.then) if isinstance(place.then, torch.Tensor) else place.then
            )
    return found


def is_this(weight: torch.Tensor) -> Callable[[Any], bool]:
    """Tells whether something is this very tensor, without holding it."""
    if has_parts(weight):
        stamp = stamped(weight)
        return lambda now: is_stamped(now, stamp)
    held = weakref.ref(weight)
    return lambda now: now is held()


def _parts(tensor: torch.Tensor) -> list[str]:
    """What a tensor is made of: weights, which others watch. And what tells it from others."""
    return [STAMP, *(tensor.__tensor_flatten__()[0] if hasattr(tensor, "__tensor_flatten__") else ())]
