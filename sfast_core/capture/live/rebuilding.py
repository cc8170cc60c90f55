"""Tuples, lists and dicts made anew with other things in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..errors import CaptureError
from .looked import Looked

_DEEPEST = 20


def rebuilt(value: Any, replace: Callable[[Any, Any], Any], depth: int = 0, at: Any = None) -> Any:
    """``value`` with each leaf, and each container that is replaced as a whole, by what ``replace`` makes of it.

    ``replace`` is given a value and the key of the dict that it is in, and returns the value where it has nothing else
    for it.

    Raises:
        CaptureError: containers hold one another without end.
    """
    if depth > _DEEPEST:
        raise CaptureError("what live code hands on holds itself")
    made = replace(value, at)
    if made is not value:
        return made
    kind = type(value)
    if kind in (tuple, list):
        return kind([rebuilt(item, replace, depth + 1) for item in value])
    if kind is dict or kind is Looked:
        return {
            replace(key, None) if isinstance(key, torch.Tensor) else key: rebuilt(item, replace, depth + 1, key)
            for key, item in dict.items(value)
        }
    return value
