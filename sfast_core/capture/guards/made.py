"""Values that a call makes and hands out or leaves behind, taken apart: later calls make each anew, with tensors of
their own in it.
"""

from __future__ import annotations

import collections
import functools
import types
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.utils import _pytree

from .all_names import slots_of
from .given import is_given, is_of_ours
from .kinds import Kind, kind_of

#: Containers of which there may be classes of somebody's own.
_CONTAINERS = (collections.OrderedDict, dict, list, tuple)
_FROM_C = (*_CONTAINERS, object)
_NONE: Mapping[int, Any] = types.MappingProxyType({})
_ON_HEAP = 1 << 9  # Python's Py_TPFLAGS_HEAPTYPE, of a class that a ``class`` statement makes


def is_made_of_parts(value: Any) -> bool:
    """Whether an object is what is in it: attributes and slots, and items where it is of a container's class.

    A dataclass is, or another of a class of somebody's own that makes its objects in no way of its own and hears of no
    end of them.
    """
    cls: Any = type(value)
    return (
        cls not in _FROM_C
        and (kind_of(value) is Kind.OBJECT or isinstance(value, _CONTAINERS))
        and _makes_of_parts(cls)
        and not is_of_ours(value)
    )


@functools.cache
def _makes_of_parts(cls: type) -> bool:
    if cls is types.SimpleNamespace:
        return True
    if is_given(cls.__module__) or issubclass(cls, type) or hasattr(cls, "__del__"):
        return False
    base = _container(cls)
    from_c = [owner for owner in cls.__mro__ if not owner.__flags__ & _ON_HEAP and owner not in _FROM_C]
    return (
        not from_c
        and cls.__new__ is base.__new__
        and (base is not object or cls.__dictoffset__ != 0 or bool(slots_of(cls)))
    )


def _container(cls: type) -> type:
    return next((base for base in _CONTAINERS if issubclass(cls, base)), object)


@dataclass(frozen=True)
class _Object:
    """How an object of a class is made: of what is in it as a container, its attributes and its slots."""

    cls: type
    state: Made

    def make(self, leaves: Iterator[Any]) -> Any:
        items, attributes, slots = self.state.make(leaves)
        base: Any = _container(self.cls)
        made = self.cls.__new__(self.cls, *((items,) if base is tuple else ()))
        if base is list:
            list.extend(made, items)
        elif issubclass(base, dict):
            for key, item in items.items():
                base.__setitem__(made, key, item)
        if attributes:
            vars(made).update(attributes)
        for name, value in slots.items():
            object.__setattr__(made, name, value)
        return made


@dataclass(frozen=True)
class Made:
    """How a value is made of its leaves.

    Attributes:
        tree: what PyTorch's pytree knows of it.
        objects: what those of the tree's leaves are that are objects of somebody's own, by their place.
    """

    tree: _pytree.TreeSpec
    objects: dict[int, _Object]

    def build(self, leaves: Sequence[Any]) -> Any:
        """The value with these leaves."""
        return self.make(iter(leaves)) if self.objects else _pytree.tree_unflatten(leaves, self.tree)

    def make(self, leaves: Iterator[Any]) -> Any:
        """The value with the next of these leaves; it takes as many as it has."""
        own = [
            self.objects[place].make(leaves) if place in self.objects else next(leaves)
            for place in range(self.tree.num_leaves)
        ]
        return _pytree.tree_unflatten(own, self.tree)


def taken_apart(value: Any, known: Mapping[int, Any] = _NONE) -> tuple[list[Any], Made]:
    """The leaves of a value, in order, and how it is made of them.

    ``known``: what stands for lists, dicts and objects that aren't taken apart, by their ids.

    Raises:
        RecursionError: it holds itself, is too deep, or an object is in it twice.
    """
    return _taken_apart(value, known, set())


def _taken_apart(value: Any, known: Mapping[int, Any], objects: set[int]) -> tuple[list[Any], Made]:
    # a pytree makes a tuple of a torch.Size
    own, tree = _pytree.tree_flatten(value, is_leaf=lambda leaf: isinstance(leaf, torch.Size) or id(leaf) in known)
    leaves: list[Any] = []
    made: dict[int, _Object] = {}
    for place, leaf in enumerate(own):
        if id(leaf) in known:
            leaves.append(known[id(leaf)])
        elif (state := _state(leaf)) is None:
            leaves.append(leaf)
        elif id(leaf) in objects:
            raise RecursionError
        else:
            objects.add(id(leaf))
            inside, how = _taken_apart(state, known, objects)
            leaves += inside
            made[place] = _Object(type(leaf), how)
    return leaves, Made(tree, made)


def parts_of(value: Any) -> Iterator[Any]:
    """What is in an object that is made of parts; nothing where it is no such."""
    if (state := _state(value)) is not None:
        items, attributes, slots = state
        yield from items.values() if isinstance(items, dict) else items
        yield from attributes.values()
        yield from slots.values()


def _state(value: Any) -> tuple[Any, dict[str, Any], dict[str, Any]] | None:
    if not is_made_of_parts(value):
        return None
    cls = type(value)
    base: Any = _container(cls)
    items: Any = ()
    if base is not object:
        items = dict(base.items(value)) if issubclass(base, dict) else list(base.__iter__(value))
    slots = {name: getattr(value, name) for name in slots_of(cls) if hasattr(value, name)}
    return items, dict(vars(value)) if cls.__dictoffset__ else {}, slots
