"""What live code leaves in the dicts and lists that it is handed, for what runs after it."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from .surroundings import Surroundings

_DEEPEST = 6
_MISSING, _OPTION = object(), object()


@dataclass(frozen=True)
class Left:
    """What was left in one container.

    Attributes:
        path: where it is among the arguments.
        items: a dict's new ones, or those that a list has got at its end.
        gone: keys that were taken out.
        otherwise: a list has changed in another way.
    """

    path: tuple[Any, ...]
    items: Any
    gone: tuple[Any, ...] = ()
    otherwise: bool = False

    def __bool__(self) -> bool:
        return bool(self.items or self.gone or self.otherwise)

    def outline(self, around: Surroundings) -> Hashable:
        """What the model's code sees of it without looking at what was left: which keys, and whether it is nothing."""
        if isinstance(self.items, dict):
            keys = frozenset([(_key(key, around), item is None) for key, item in self.items.items()])
            return keys, frozenset([_key(key, around) for key in self.gone])
        return len(self.items), self.otherwise

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
            return Left(self.path, self.container[kept:] if same else [], otherwise=not same)
        items = {key: item for key, item in self.container.items() if self.then.get(key, _MISSING) is not item}
        return Left(self.path, items, tuple(self.then.keys() - self.container.keys()))


def _key(key: Any, around: Surroundings) -> Hashable:
    """A function of others that is a key is what has its place in another call."""
    return key if isinstance(key, str) or (path := around.path(key)) is None else (_OPTION, path)


def outlines(contents: Sequence[Content], left: Sequence[Left], around: Surroundings) -> dict[int, Hashable]:
    """An outline of what live code has left in the model's own containers, by their numbers.

    Args:
        contents: the containers that it was handed.
        left: what it has left in each.
        around: the call's own things, the model's containers among them.
    """
    numbers = {id(box): number for number, box in around.boxes.items()}
    return {
        numbers[id(content.container)]: found.outline(around)
        for content, found in zip(contents, left, strict=True)
        if found and id(content.container) in numbers
    }


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
