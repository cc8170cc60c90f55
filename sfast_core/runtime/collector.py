"""Python's garbage collector, kept still for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..machine.forks import renew_in_children


@contextmanager
def collector_paused() -> Iterator[None]:
    """No automatic collection inside. Nests; where collection was off before, it stays off."""
    pause = _Pause(gc.isenabled())
    renew_in_children(pause)
    gc.disable()
    try:
        yield
    finally:
        pause.renew()


class _Pause:
    """Ends when its block does, and in a child that is forked meanwhile: the thread that would end it isn't there."""

    def __init__(self, collecting: bool) -> None:
        self._collecting = collecting

    def renew(self) -> None:
        if self._collecting:
            gc.enable()
