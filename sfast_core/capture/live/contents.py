"""What live code leaves in the dicts and lists that it is handed, for what runs after it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .surroundings import Surroundings

_DEEPEST = 3
_MISSING = object()


@dataclass(frozen=True)
class Left:
    """What was left in one container.

    Attributes:
        path: where it is among the arguments.
        items: a dict's new ones, or those that a list has got at its end.
        gone: keys that were taken out.
    """

    path: tuple[Any, ...]
    items: Any
    gone: tuple[Any, ...] = ()

    def leave(self, args: Any) -> None:
        """Leave the same in other arguments; nothing where they are built otherwise."""
        found = args
        try:
            for step in self.path:
                found = found[step]
        except (LookupError, TypeError):
            return
        if isinstance(found, dict) and isinstance(self.items, dict):
            found.update(self.items)
            for key in self.gone:
                found.pop(key, None)
        elif isinstance(found, list) and isinstance(self.items, list):
            found.extend(self.items)


@dataclass(frozen=True)
class Content:
    """One container before live code ran, and what was in it."""

    path: tuple[Any, ...]
    container: Any
    then: Any

    def left(self) -> Left:
        """What is in it by now that wasn't."""
        if isinstance(self.container, list):
            kept = len(self.then)
            same = len(self.container) >= kept and all(
                now is then for now, then in zip(self.container, self.then, strict=False)
            )
            return Left(self.path, self.container[kept:] if same else [])
        items = {key: item for key, item in self.container.items() if self.then.get(key, _MISSING) is not item}
        return Left(self.path, items, tuple(self.then.keys() - self.container.keys()))


def contents_of(value: Any, around: Surroundings, path: tuple[Any, ...] = ()) -> Iterator[Content]:
    """Dicts and lists in tuples, lists and dicts, with what is in them; none of the call's own options."""
    kind = type(value)
    if (
        kind not in (tuple, list, dict)
        or len(path) > _DEEPEST
        or (kind is not tuple and around.path(value) is not None)
    ):
        return
    if kind is not tuple:
        yield Content(path, value, value.copy())
    for key, item in value.items() if kind is dict else enumerate(value):
        if type(item) in (tuple, list, dict):
            yield from contents_of(item, around, (*path, key))
