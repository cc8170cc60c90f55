"""What a child finds that is forked while another thread is inside a call: locks that nobody will ever release, and a
collector that stays off.
"""

from __future__ import annotations

import functools
import os
import threading
import weakref
from typing import Protocol


class Renewed(Protocol):
    """Something that holds locks, or switches that a thread turns back."""

    def renew(self) -> None:
        """In a child, where no other thread lives: make it as if none were inside."""


def renew_in_children(thing: Renewed) -> None:
    """Have every child that is forked from now on call ``thing.renew()`` first, as long as the thing is alive.

    It isn't held.
    """
    _things().add(thing)


@functools.cache
def _things() -> weakref.WeakSet[Renewed]:
    """Those to renew. The handler, which can't be taken back, is registered when the first one comes."""
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
