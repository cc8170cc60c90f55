"""Tuples, lists and dicts with other things in them."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import torch

from .errors import CaptureError

_DEEPEST = 20


def rebuilt(value: Any, replace: Callable[[Any, Any], Any], anew: bool = True, kinds: tuple[type, ...] = ()) -> Any:
    """``value`` with each leaf, and each container that is replaced as a whole, by what ``replace`` makes of it.

    Args:
        value: it.
        replace: is given a value and the key of the dict that it is in, or None, and returns the value where it has
            nothing else for it.
        anew: whether containers in which nothing is replaced are made anew, too; else they are the very ones.
        kinds: of dicts of other classes, which become plain ones.

    Raises:
        CaptureError: containers hold one another without end.
    """
    return _rebuilt(value, None, replace, anew, kinds, 0)


def _rebuilt(
    value: Any, at: Any, replace: Callable[[Any, Any], Any], anew: bool, kinds: tuple[type, ...], depth: int
) -> Any:
    if depth > _DEEPEST:
        raise CaptureError("what is handed on holds itself")
    made = replace(value, at)
    if made is not value:
        return made
    kind = type(value)
    if kind in (tuple, list):
        items = [_rebuilt(item, None, replace, anew, kinds, depth + 1) for item in value]
        return kind(items) if anew or not all(map(operator.is_, items, value)) else value
    if kind is dict or kind in kinds:
        pairs = [
            (
                replace(key, None) if isinstance(key, torch.Tensor) else key,
                _rebuilt(item, key, replace, anew, kinds, depth + 1),
            )
            for key, item in dict.items(value)
        ]
        if not anew and all(
            one is key and other is item for (one, other), (key, item) in zip(pairs, dict.items(value), strict=True)
        ):
            return value
        return dict(pairs)
    return value
