"""Lists and dicts among a call's arguments that its result holds: each call's result has its own caller's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from .guards import taken_apart

_DEEPEST = 20


@dataclass(frozen=True)
class CallersOwn:
    """One of them: the indices and keys that lead to it from the arguments and the keyword arguments."""

    path: tuple[Any, ...]

    def of(self, given: Any) -> Any:
        """That of a call that was given this: its arguments and its keyword arguments."""
        for key in self.path:
            given = given[key]
        return given


def callers_own(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[int, CallersOwn]:
    """The caller's lists and dicts by their ids. One at two places is left out: no signature tells that it is."""
    found: dict[int, CallersOwn] = {}
    twice: set[int] = set()

    def walk(value: Any, path: tuple[Any, ...]) -> None:
        if type(value) not in (tuple, list, dict) or len(path) > _DEEPEST:
            return
        if type(value) is not tuple:
            twice.update({id(value)} & found.keys())
            if id(value) in found:
                return
            found[id(value)] = CallersOwn(path)
        for key, item in value.items() if type(value) is dict else enumerate(value):
            walk(item, (*path, key))

    for place, given in enumerate((args, kwargs)):  # the two themselves are made by Python for each call
        for key, item in given.items() if isinstance(given, Mapping) else enumerate(given):
            walk(item, (place, key))
    return {key: own for key, own in found.items() if key not in twice}


def with_callers_own(result: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """A result with this call's lists and dicts at the places of :class:`CallersOwn`."""
    leaves, made = taken_apart(result)
    if not any(type(leaf) is CallersOwn for leaf in leaves):
        return result
    return made.build([leaf.of((args, kwargs)) if type(leaf) is CallersOwn else leaf for leaf in leaves])
