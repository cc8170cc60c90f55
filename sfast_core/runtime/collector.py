"""Python's garbage collector, kept still for a while."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from ..machine.forks import renew_in_children


@contextmanager
def collector_paused(lasting: bool = False) -> Iterator[None]:
    """No automatic collection inside. Nests; where collection was off before, it stays off.

    ``lasting``: what is made inside stays for long, unless it ends with an exception. See :func:`_grown_old`.
    """
    pause = _Pause(gc.isenabled())
    renew_in_children(pause)
    gc.disable()
    try:
        yield
    finally:
        pause.renew()
    if lasting:
        _grown_old()


def _grown_old() -> None:
    """Have the collector take all that is alive for long-lived, as it would after it had walked it all.

    A trace is tens of thousands of objects. Made young, they bring the next walk over everything nearer, 0.2 s and more
    in a host's process, which then falls into the first picture.
    """
    if gc.isenabled() and not gc.get_freeze_count():  # what the host has frozen stays frozen
        gc.collect(0)  # what is no longer in use mustn't wait for that walk: it may hold a device's memory
        gc.freeze()
        gc.unfreeze()


class _Pause:
    """Ends when its block does, and in a child that is forked meanwhile: the thread that would end it isn't there."""

    def __init__(self, collecting: bool) -> None:
        self._collecting = collecting

    def renew(self) -> None:
        if self._collecting:
            gc.enable()
