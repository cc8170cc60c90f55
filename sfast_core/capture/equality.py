"""What is compared by its value to tell whether something changed, and how."""

from __future__ import annotations

from typing import Any

import torch

SIMPLE = (bool, int, float, str, type(None), tuple, torch.dtype, torch.device)
CONTAINERS = (list, dict, set)


def equal(now: Any, then: Any) -> bool:
    """Whether everything is the same object or compares equal; False where it can't be compared (arrays, tensors)."""
    try:
        return bool(now == then)
    except Exception:
        return False


def same(now: Any, then: Any, by_value: tuple[type, ...] = SIMPLE) -> bool:
    """Whether it is the same object, or one of the same kind and value."""
    return now is then or (isinstance(then, by_value) and type(now) is type(then) and equal(now, then))


def unchanged(now: Any, then: Any) -> bool:
    """Whether an attribute is what it was: the same object, one of the same kind and value, or what isn't watched, then as now."""
    if now is then:
        return True
    if isinstance(now, torch.Tensor) and isinstance(then, torch.Tensor):
        return True
    if isinstance(then, CONTAINERS) and type(now) is type(then) and not (plain(now) and plain(then)):
        return not plain(now) and not plain(then)  # what such a container holds is not watched
    return same(now, then, (*SIMPLE, *CONTAINERS))


def plain(value: Any) -> bool:
    """Whether a container holds nothing but simple values and containers of them."""
    if isinstance(value, dict):
        return all(isinstance(key, SIMPLE) and plain(item) for key, item in value.items())
    return all(map(plain, value)) if isinstance(value, (list, set, tuple)) else isinstance(value, SIMPLE)
