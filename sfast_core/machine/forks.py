"""Repairs, in a forked child process, what other threads of the parent were in the middle of: locks that nobody would
ever release, and a collector that would stay off.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Something with locks, or with switches that a thread would turn back."""

    def renew(self) -> None:
        """Called in a forked child, where no other thread lives: forget what other threads were doing."""


def renew_in_children(thing: Renewed) -> None:
    """Have every child that is forked from now on call ``thing.renew()`` first. That doesn't keep the thing alive."""
    _things().add(thing)


@functools.cache
def _things() -> weakref.WeakSet[Renewed]:
    """The things to renew. The handler, which can't be removed, is registered when this is first asked for."""
    things = weakref.WeakSet[Renewed]()

    def renew_all() -> None:
        for thing in list(things):
            thing.renew()

    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=renew_all)
    return things


class OwnLock:
    """A reentrant lock, ``with own.lock:``, that is free in a forked child."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        renew_in_children(self)

    def renew(self) -> None:
        self.lock = threading.RLock()
