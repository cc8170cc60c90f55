"""Where the attributes lie that were read of objects: in the object's own table, among a module's parts, or nowhere."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from .kinds import Kind
from .notes import MISSING, Row, Seen
from .read_set import ReadSet
from .seen_values import ASKED, COMPUTED

Note = Callable[[torch.Tensor], Any]


def rows_of(reads: ReadSet, left_out: Collection[tuple[int, Any]], noted: Note) -> list[Row]:
    """What is to be watched of the objects that a call read.

    Args:
        reads: the call's, which is over. Modules are told by which they are: what was found of them is not kept there.
        left_out: places that are not watched: the id of the table, and the name.
        noted: what to keep of a tensor in its place.
    """
    rows: list[Row] = []
    for seen in reads.seen.values():
        if not seen.found or seen.table is None:
            continue
        tables: dict[int, Row] = {}
        for table, name, then in _places(reads, seen):
            key = id(table)
            if (key, name) in left_out:
                continue
            row = tables.get(key)
            if row is None:
                row = tables[key] = Row(table, seen.origin)
                rows.append(row)
            if then is MISSING:
                row.absent.append(name)
            else:
                row.names.append(name)
                row.then.append(noted(then) if isinstance(then, torch.Tensor) else then)
        if seen.kind is Kind.MODULE:
            seen.found = {}
    return rows


def _places(reads: ReadSet, seen: Seen) -> Iterator[tuple[Any, str, Any]]:
    """Each attribute's table, its name, and what was there."""
    before, lookups, cls = seen.before, reads.lookups, seen.cls
    for name, value in seen.found.items():
        kind, in_class = lookups.get((cls, name), (COMPUTED, None))  # an object's class is looked up nowhere
        if kind is ASKED or kind is COMPUTED:
            continue
        if name in before:
            yield seen.table, name, value
            continue
        for table, part in seen.parts:
            if name in part:
                yield table, name, value
                break
        else:
            yield seen.table, name, MISSING
            if in_class is MISSING:
                for table, _ in seen.parts:
                    yield table, name, MISSING
