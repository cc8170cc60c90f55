"""Did an object change that a module keeps and that is no module? An attention processor has a scale, say."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Iterator
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from .called import FUNCTIONS, is_given, known_to
from .equality import CONTAINERS, SIMPLE, equal, plain, unchanged
from .places import Places

Attributes = dict[str, Any]
_NOT_LOOKED_INTO = (*SIMPLE, *CONTAINERS, *FUNCTIONS, torch.Tensor, torch.nn.Module, type, ModuleType)


class ObjectGuard:
    """What such objects' attributes were at the time of a trace, as far as the code that may run uses their names.

    Watched are simple values and containers of simple values, by value, and functions. What else an object keeps is not.

    Args:
        objects: where each is kept, and the object.
        used: the names in the code that may run.
    """

    def __init__(self, objects: Iterable[tuple[str, Any]], used: set[str]) -> None:
        self._used = used
        places = {id(value): (path, vars(value)) for path, value in objects}
        self._paths, self._own = [path for path, _ in places.values()], [own for _, own in places.values()]
        self._then = list(map(self._watched, self._own))
        self._look()

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        if list(map(len, self._own)) == self._sizes and self._places.same() and equal(self._places.then, self._copies):
            return None
        now = list(map(self._watched, self._own))
        for path, own, after, before in zip(self._paths, self._own, now, self._then, strict=True):
            for name in {**before, **after}:
                if not unchanged(own.get(name), before.get(name)):
                    return f"{path}.{name} changed"
        self._then = now  # what is different doesn't matter: take it over, so that the next call is quick again
        self._look()
        return None

    def _watched(self, own: Attributes) -> Attributes:
        """A copy of what counts, which stays as it is when a container changes."""
        return {
            name: copy.deepcopy(value) if isinstance(value, CONTAINERS) else value
            for name, value in own.items()
            if name in self._used and (isinstance(value, (*SIMPLE, *FUNCTIONS)) or (isinstance(value, CONTAINERS) and plain(value)))
        }

    def _look(self) -> None:
        """Note for a glance at the next calls which objects are where, and what is in the containers."""
        self._sizes = list(map(len, self._own))
        self._places = Places((own, name) for own, then in zip(self._own, self._then, strict=True) for name in then)
        self._copies = [value for then in self._then for value in then.values()]


def functions_of(prefix: str, own: Attributes) -> Iterator[tuple[str, Any]]:
    """The functions that a module has of its own, each with its place."""
    return ((prefix + name, value) for name, value in own.items() if isinstance(value, FUNCTIONS))


def objects_of(prefix: str, own: Attributes) -> Iterator[tuple[str, Any]]:
    """The objects that are no modules and that a module keeps, or that its own functions know, each with its place."""
    yield from ((prefix + name, value) for name, value in own.items() if not name.startswith("_") and _is_object(value))
    for name, value in own.items():
        if isinstance(value, FUNCTIONS):
            yield from ((prefix + name, known) for known in known_to(value) if _is_object(known))


def _is_object(value: Any) -> bool:
    """Whether it is an object of a host's or a node's own class, with attributes, or one that has nothing but attributes."""
    if isinstance(value, SimpleNamespace):
        return True
    return not isinstance(value, _NOT_LOOKED_INTO) and type(value).__dictoffset__ != 0 and not is_given(type(value).__module__)
