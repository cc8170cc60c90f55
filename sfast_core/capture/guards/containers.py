"""The lists, dicts and objects that a call hands out: later calls make each of them anew."""

from __future__ import annotations

import collections
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch

from .made import is_made_of_parts, parts_of

#: Those that a result may be made of, and that whoever has one may change.
CHANGEABLE = (list, dict, collections.deque)


class NewContainers:
    """The lists and dicts that one call hands out. Whoever is handed one may change it, and others may look for that
    where it is, too: so none may be found at two places, nor have been there before the call.

    Args:
        there: asked for the ids of those that were there before, where the call hands out any.
    """

    def __init__(self, there: Callable[[], Collection[int]] = tuple) -> None:
        self._ask_there = there
        self._there: Collection[int] | None = None
        self._out: dict[int, Any] = {}  # they are held: another would have the id of one that is gone

    def why_not(self, value: Any, known: Collection[int] = ()) -> str | None:
        """Note what is handed out with ``value``; what is wrong with one of these, in words, or None.

        ``known``: the ids of those that are handed out as what they are.

        Raises:
            RecursionError: it holds itself, or is too deep.
        """
        for each in containers_in(value, known=known):
            if self._there is None:
                self._there = frozenset(self._ask_there())
            if id(each) in self._there:
                return f"a {type(each).__name__} that was there before the call"
            if id(each) in self._out:
                return f"a {type(each).__name__} that is also elsewhere"
            self._out[id(each)] = each
        return None


def containers_in(value: Any, inside: bool = True, known: Collection[int] = ()) -> Iterator[Any]:
    """The lists, dicts and objects made of parts that a value is, and that are in it.

    ``inside``: also in objects. ``known``: the ids of those that don't count, with what is in them.

    Raises:
        RecursionError: it holds itself, or is too deep.
    """
    if id(value) in known:
        return
    is_object = not isinstance(value, torch.Tensor) and is_made_of_parts(value)
    if is_object or isinstance(value, CHANGEABLE):
        yield value
    if isinstance(value, (*CHANGEABLE, tuple)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from containers_in(item, inside, known)
    if is_object and inside:
        for item in parts_of(value):
            yield from containers_in(item, known=known)
