"""Tensors whose ids code may ask for where its values aren't followed: those that a comprehension goes through, say."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

import torch

NUMBERING = (id, hash)
HASH = torch.Tensor.__hash__.__code__  #: a tensor's hash is its id
_DEEPEST = 3
_KINDS = (list, tuple, dict, set, frozenset)
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
