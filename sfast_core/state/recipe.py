"""Recipes: how to build a call's result, and what it leaves in its caches, from the tensors that a program computes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree


class Making:
    """What recipes use.

    Args:
        tensors: those that the call has computed.
        objects: the caller's own caches and containers, by number.
        given: the tensors that were in them, by number.
    """

    def __init__(self, tensors: Sequence[torch.Tensor], objects: Sequence[Any], given: Sequence[torch.Tensor]) -> None:
        self.tensors = tensors
        self.objects = objects
        self.given = given
        self.made: dict[int, Any] = {}
        self.written: set[int] = set()
        self.views: dict[int, torch.Tensor] = {}


class Recipe:
    """How to build one value."""

    def make(self, by: Making) -> Any:
        """The value for this call."""
        raise NotImplementedError


@dataclass(frozen=True)
class Constant(Recipe):
    """A value that is the same in each call."""

    value: Any

    def make(self, by: Making) -> Any:
        return self.value

    def __eq__(self, other: object) -> bool:
        return (
            type(other) is Constant
            and type(self.value) is type(other.value)
            and (self.value is other.value or self.value == other.value)
        )

    def __hash__(self) -> int:
        return hash(type(self.value))


@dataclass(frozen=True)
class Computed(Recipe):
    """A tensor that the call has computed."""

    index: int

    def make(self, by: Making) -> Any:
        return by.tensors[self.index]


@dataclass(frozen=True)
class Given(Recipe):
    """A tensor that was in a cache before. Where the call has written to it, the computed tensor ``written`` is copied
    into it.
    """

    number: int
    written: int | None = None

    def make(self, by: Making) -> Any:
        tensor = by.given[self.number]
        if self.written is not None and self.number not in by.written:
            by.written.add(self.number)
            if (computed := by.tensors[self.written]) is not tensor:  # the program may have written into it itself
                tensor.copy_(computed)
        return tensor


@dataclass(frozen=True)
class Within(Recipe):
    """A view of another tensor, by its region relative to where that begins."""

    of: Given | Computed
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    def make(self, by: Making) -> Any:
        made = by.views.get(id(self))
        if made is None:
            base = self.of.make(by)
            made = by.views[id(self)] = base.as_strided(self.size, self.stride, base.storage_offset() + self.offset)
        return made


@dataclass(frozen=True)
class Known(Recipe):
    """An object, a list or a dict of the caller's."""

    number: int

    def make(self, by: Making) -> Any:
        return by.objects[self.number]


@dataclass(frozen=True)
class Table(Recipe):
    """A dict."""

    items: tuple[tuple[Any, Recipe], ...]

    def make(self, by: Making) -> Any:
        return {key: item.make(by) for key, item in self.items}


@dataclass(frozen=True)
class New(Recipe):
    """A cache that the call has made. All recipes with this number give the same object."""

    cls: type
    number: int
    content: Table | None  # None where it comes again

    def make(self, by: Making) -> Any:
        made = by.made.get(self.number)
        if made is None:
            made = by.made[self.number] = object.__new__(self.cls)
            assert self.content is not None
            made.__dict__.update(self.content.make(by))
        return made


@dataclass(frozen=True)
class Row(Recipe):
    """A list or a tuple."""

    cls: type
    items: tuple[Recipe, ...]

    def make(self, by: Making) -> Any:
        return self.cls([item.make(by) for item in self.items])


@dataclass(frozen=True)
class Outcome:
    """All that a call leaves.

    Attributes:
        tree: how its result is built,
        leaves: from the values of these recipes.
        states: what the caller's caches and containers hold afterwards, by their numbers: a :class:`Table` or a
            :class:`Row` each.
        grows: the attributes of caches whose tensor had another shape before, or whose number changed: they will be
            different again in the next call.
    """

    tree: _pytree.TreeSpec
    leaves: tuple[Recipe, ...]
    states: tuple[Recipe, ...]
    grows: frozenset[str]

    def writes(self) -> dict[int, int]:
        """Number of a tensor from a cache → number of the computed tensor that the call has written into it."""
        return {
            part.written: part.number
            for each in (*self.leaves, *self.states)
            for part in _given(each)
            if part.written is not None
        }

    def apply(self, by: Making) -> Any:
        """Bring the caller's caches to this state, and return the call's result."""
        for target, state in zip(by.objects, self.states, strict=True):
            _leave(target, state.make(by))
        return _pytree.tree_unflatten([leaf.make(by) for leaf in self.leaves], self.tree)


def _given(recipe: Recipe | None) -> Iterator[Given]:
    """The recipes of tensors from caches within a recipe."""
    if isinstance(recipe, Given):
        yield recipe
    parts: Iterable[Recipe | None] = ()
    if isinstance(recipe, Table):
        parts = [item for _, item in recipe.items]
    elif isinstance(recipe, Row):
        parts = recipe.items
    elif isinstance(recipe, New):
        parts = [recipe.content]
    elif isinstance(recipe, Within):
        parts = [recipe.of]
    for part in parts:
        yield from _given(part)


def _leave(target: Any, content: Any) -> None:
    """Put ``content`` into ``target``, which stays the object that it is."""
    if isinstance(target, list):
        if len(target) != len(content) or any(map(_differ, target, content)):
            target[:] = content
        return
    table = target if isinstance(target, dict) else vars(target)
    if list(table) != list(content):
        for key in table.keys() - content.keys():
            del table[key]
    for key, value in content.items():
        if key not in table or _differ(table[key], value):
            table[key] = value


def _differ(one: Any, other: Any) -> bool:
    """Whether these are neither the same object nor equal numbers or texts."""
    return one is not other and not (
        type(one) is type(other) and isinstance(one, (bool, int, str, float)) and one == other
    )
