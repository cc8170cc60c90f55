"""Tensors whose ids code may ask for where its values aren't followed: those that a comprehension goes through, say.
And what is no tensor, so that to ask which object it is tells none from another.
"""

from __future__ import annotations

import builtins
import enum
from collections.abc import Collection, Iterator, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch

from .kinds import Kind, kind_of

NUMBERING = (id, hash)
HASH = torch.Tensor.__hash__.__code__  #: a tensor's hash is its id
_DEEPEST = 3
_KINDS = (list, tuple, dict, set, frozenset)
#: How others are compared than tensors, and what may give one.
_NO_TENSORS = frozenset({Kind.FUNCTION, Kind.CLASS, Kind.FILE, Kind.VALUE, Kind.CACHED, Kind.SEQUENCE, Kind.MAPPING})
#: What goes through other things, and tells what these are.
_GOING_THROUGH = (zip, map, enumerate, reversed, *map(type, (iter([]), iter(()), iter({}.values()), reversed([]))))


def tensors_of(variables: Mapping[str, Any], names: Collection[str | None]) -> Iterator[tuple[str, torch.Tensor]]:
    """The tensors that some of a frame's variables are, or hold, with the variable's name.

    Args:
        variables: all.
        names: of those that count; None among them: each does.
    """
    for name, value in variables.items():
        if None in names or name in names:
            for tensor in _tensors_in(value, 0):
                yield name, tensor


def _tensors_in(value: Any, depth: int) -> Iterator[torch.Tensor]:
    kind = type(value)
    if isinstance(value, torch.Tensor):
        yield value
    elif kind in _GOING_THROUGH and depth < _DEEPEST:
        yield from _tensors_in(value.__reduce__()[1], depth + 1)
    elif kind in _KINDS and depth < _DEEPEST:
        for item in value.values() if kind is dict else value:
            yield from _tensors_in(item, depth + 1)


def is_no_tensor(names: Mapping[str, Any], path: Sequence[str]) -> bool:
    """Whether a global of a file's, or what classes and files have below it, is a function, a class, a plain value.
    Nothing is run for it.

    Args:
        names: the file's.
        path: the global's name, and those of attributes, one below another.
    """
    found: Any = names.get(path[0], getattr(builtins, path[0], None))
    for name in path[1:]:
        if isinstance(found, enum.EnumMeta):
            tables = [found._member_map_]
        elif isinstance(found, (type, ModuleType)):
            tables = [vars(owner) for owner in (found.__mro__ if isinstance(found, type) else (found,))]
        else:
            return False
        found = next((table[name] for table in tables if name in table), torch.Tensor())
    return isinstance(found, (staticmethod, classmethod, enum.Enum)) or kind_of(found) in _NO_TENSORS
