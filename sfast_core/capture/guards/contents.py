"""What was in lists and dicts, many of them in one row that C compares."""

from __future__ import annotations

import itertools
import operator
from typing import Any

from .kinds import Kind, TensorNote
from .notes import Held


class Contents:
    """Containers of one class, and what was in them, in one row."""

    def __init__(self, held: list[Held], items: Any) -> None:
        self.held = held
        self.values = [entry.value for entry in held]
        self._items = items
        self._sizes = list(map(len, self.values))
        self._row = list(items(self.values))

    def different(self) -> list[Held]:
        """The containers to look at more closely: none, or all of them."""
        if list(map(len, self.values)) == self._sizes and all(map(operator.is_, self._items(self.values), self._row)):
            return []
        return self.held


def of_lists(values: list[list[Any]]) -> Any:
    return itertools.chain.from_iterable(values)


def of_dicts(values: list[dict[Any, Any]]) -> Any:
    return itertools.chain(
        itertools.chain.from_iterable(values), itertools.chain.from_iterable(map(dict.values, values))
    )


def has_notes(held: Held) -> bool:
    values = held.before[1] if held.kind is Kind.MAPPING else held.before
    return any(type(value) is TensorNote for value in values)


def has_weights(held: Held) -> bool:
    """Whether a list or tuple holds weights, which the model may put others in the place of."""
    return any(type(value) is TensorNote and value.weight is not None for value in held.before)
