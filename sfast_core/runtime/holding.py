"""Memory of a device that its :class:`~.graphs.DeviceGraphs` count, and take away when there is too little."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any


class Holding:
    """A graph, or memory that graphs read beside their own.

    Attributes:
        alive: it may be used; False from its release on.
        busy: it is being used: nobody may take it away.
        bytes: what it holds.
    """

    def __init__(self, size: int = 0) -> None:
        self.alive, self.busy, self.bytes = True, False, size
        self._watch: weakref.finalize[..., Any] | None = None

    def go_with(self, owner: object, release: Callable[[Holding], None]) -> None:
        """Have ``release`` called with it when its owner, which isn't held, is gone."""
        self._watch = weakref.finalize(owner, release, self)
        self._watch.atexit = False

    def release(self) -> None:
        """Give the memory back."""
        self.alive = False
        if self._watch is not None:
            self._watch.detach()
