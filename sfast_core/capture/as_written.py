"""What ``torch.compile`` has compiled inside a module, while a call of that is recorded."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from ..forks import renew_in_children


@contextmanager
def as_written() -> Iterator[None]:
    """Functions and modules that ``torch.compile`` has compiled run as they were written in here: what it makes of them can't be recorded.

    It is a switch of the whole process: other threads' run so too meanwhile.
    """
    if "torch._dynamo" not in sys.modules or not hasattr(torch.compiler, "set_stance"):  # nobody has compiled any
        yield
        return
    inside, switch = object(), _switch()
    try:
        switch.on(inside)
        yield
    finally:
        switch.off(inside)


class _Switch:
    """The first one turns it, the last one turns it back."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._inside: list[object] = []
        self._stance: AbstractContextManager[Any] | None = None
        renew_in_children(self)

    def on(self, one: object) -> None:
        with self._lock:
            self._inside.append(one)
            if self._stance is None:
                self._stance = torch.compiler.set_stance("force_eager")  # type: ignore[no-untyped-call]
                self._stance.__enter__()

    def renew(self) -> None:
        """In a forked child, where the other threads aren't."""
        self._lock = threading.RLock()
        self._inside.clear()
        self.off(None)

    def off(self, one: object) -> None:
        with self._lock:
            if one in self._inside:
                self._inside.remove(one)
            if not self._inside and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


@functools.cache
def _switch() -> _Switch:
    return _Switch()
