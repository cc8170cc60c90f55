"""Device memory that :class:`~.graphs.DeviceGraphs` counts, and evicts when there is too little."""

from __future__ import annotations

import contextlib
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any


class Holding:
    """A graph, or other memory that graphs read.

    Attributes:
        alive: whether it may be used; False once it is released.
        busy: whether it is in use, so that it must not be evicted.
        bytes: its size.
    """

    def __init__(self, size: int = 0) -> None:
        self.alive, self.busy, self.bytes = True, False, size
        self._watch: weakref.finalize[..., Any] | None = None

    def go_with(self, owner: object, release: Callable[[Holding], None]) -> None:
        """Call ``release`` with this holding when ``owner`` is freed. The owner isn't kept alive by that."""
        self._watch = weakref.finalize(owner, release, self)
        self._watch.atexit = False

    def release(self) -> None:
        """Give the memory back."""
        self.alive = False
        if self._watch is not None:
            self._watch.detach()


@contextlib.contextmanager
def in_use(holdings: Sequence[Holding]) -> Iterator[None]:
    """Nobody may evict these in a ``with`` of this: what is being run or captured reads them."""
    before = [each.busy for each in holdings]
    for each in holdings:
        each.busy = True
    try:
        yield
    finally:
        for each, busy in zip(holdings, before, strict=True):
            each.busy = busy
