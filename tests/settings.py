"""Sets something of PyTorch's for a while."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest


@contextlib.contextmanager
def set_to(owner: Any, name: str, value: Any) -> Iterator[None]:
    """``owner.name`` is ``value``; the test is skipped where this PyTorch has none."""
    if not hasattr(owner, name):
        pytest.skip(f"this PyTorch has no {name}")
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
