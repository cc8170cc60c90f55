"""Where the attributes lie that were read of objects: in the object's own table, among a module's parts, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any, NamedTuple

import torch

from .given import is_of_ours
from .kinds import Kind, TensorNote
from .notes import COMPUTED, MISSING, Row, Seen, Table
from .read_set import ReadSet
from .seen_objects import ASKED

Note = Callable[[Any], Any]
NOTED = (torch.Tensor, list, tuple, dict)  #: what may not be kept as it is


class _There(NamedTuple):
    table: int  #: which one: the object's own, then its parts
    present: list[str]
    absent: list[str]


def rows_of(reads: ReadSet, left_out: Collection[tuple[int, Any]], noted: Note) -> list[Row]:
    """What is to be watched of the objects that a call read.

    Args:
        reads: the call's, which is over. Modules are told by which they are: what was found of them is not kept there.
        left_out: places that are not watched: the id of the table, and the name.
        noted: what to keep of a tensor or a container in its place.
    """
    rows: list[Row] = []
    shapes: dict[tuple[Any, ...], list[_There]] = {}
    without: dict[int, set[Any]] = {}  # by table
    for key, name in left_out:
        without.setdefault(key, set()).add(name)
    for seen in reads.seen.values():
        if not seen.found or seen.table is None:
            continue
        names, kept = tuple(seen.found), (seen.before, *[before for _, before in seen.parts])
        shape = (seen.cls, names, *[tuple(map(table.__contains__, names)) if table else () for table in kept])
        there = shapes.get(shape)
        if there is None:
            there = shapes[shape] = _where(reads, seen, names, kept)
        for which, present, absent in there:
            table = seen.parts[which - 1][0] if which else seen.table
            out = without.get(id(table), ())
            present = [name for name in present if name not in out]
            absent = [name for name in absent if name not in out]
            if present or absent:
                found = [seen.found[name] for name in present]
                then = [noted(value) if isinstance(value, NOTED) else value for value in found]
                rows.append(Row(table, seen.origin, present, then, absent))
        if seen.kind is Kind.MODULE:
            seen.found = {}
    return rows


def rows_of_walked(reads: ReadSet, left_out: Collection[tuple[int, Any]], noted: Note) -> Iterator[Row]:
    """Weights that code comes by where it goes through all of them, and may ask for their dtype, say; those that the
    trace reads others watch.
    """
    for table, _, origin in reads.counted.values():
        if not table:
            continue
        weights = {
            name: value
            for name, value in table.items()
            if isinstance(value, torch.Tensor) and (id(table), name) not in left_out
        }
        if weights:
            yield Row(table, origin, list(weights), list(map(noted, weights.values())))


def _where(reads: ReadSet, seen: Seen, names: tuple[str, ...], kept: tuple[Table, ...]) -> list[_There]:
    """In which of an object's tables each of these attributes is, and in which it has to stay away.

    Thousands of layers are alike in this.
    """
    found = [_There(index, [], []) for index in range(len(kept))]
    for name in names:
        kind, in_class = reads.lookups.get((seen.cls, name), (COMPUTED, None))  # an object's class is looked up nowhere
        if kind is ASKED or kind is COMPUTED:
            continue
        home = next((index for index, table in enumerate(kept) if name in table), None)
        if home is not None:
            found[home].present.append(name)
            continue
        for there in found if in_class is MISSING else found[:1]:
            there.absent.append(name)
    return [there for there in found if there.present or there.absent]


def leads_to_ours(name: str, value: Any) -> bool:
    """Whether an attribute of the root's is the compiled forward, or what others put around it: holding that, a guard
    would hold itself.
    """
    return name == "forward" or (is_of_ours(value) and type(value) not in (TensorNote, type(MISSING), type(COMPUTED)))
