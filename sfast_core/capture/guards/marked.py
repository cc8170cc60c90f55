"""What others had put on tensors, as far as it was read, and which tensors those were."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch

from ...weights.part import STAMP, has_parts, is_stamped, stamped
from .kinds import TensorNote
from .read_set import ReadSet


def marks_of(reads: ReadSet) -> dict[int, dict[str, Any]]:
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
