"""What is compared by its value to tell whether something changed, and how."""

from __future__ import annotations

from typing import Any

import torch

SIMPLE = (bool, int, float, str, type(None), tuple, torch.dtype, torch.device)


def equal(now: Any, then: Any) -> bool:
    """Whether everything is the same object or compares equal; False where it can't be compared (arrays, tensors)."""
    try:
        return bool(now == then)
    except Exception:
        return False


def same(now: Any, then: Any, by_value: tuple[type, ...] = SIMPLE) -> bool:
    """Whether it is the same object, or one of the same kind and value."""
    return now is then or (isinstance(then, by_value) and type(now) is type(then) and equal(now, then))
