"""What is of the whole process, and otherwise while calls are recorded: the first one that is inside changes it, the
last one changes it back.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Generic, TypeVar

from ..machine.forks import renew_in_children

T = TypeVar("T")


class Switch(Generic[T]):
    """Threads enter and leave it in any order; in a forked child only the thread is inside that was and lives.

    Args:
        change: changes what is of the process, and gives what changes it back.
    """

    def __init__(self, change: Callable[[], Callable[[], None]]) -> None:
        self._change = change
        self._back: Callable[[], None] | None = None
        self._lock = threading.RLock()
        self._inside: dict[int, list[tuple[T]]] = {}  # by thread, what each entered with, the innermost last
        renew_in_children(self)

    @contextmanager
    def on(self, value: T) -> Iterator[None]:
        """Be inside for the length of the context, with a value of one's own."""
        thread, own = threading.get_ident(), (value,)
        try:
            with self._lock:
                self._inside.setdefault(thread, []).append(own)
                if self._back is None:
                    self._back = self._change()
            yield
        finally:
            with self._lock:
                left = [other for other in self._inside.pop(thread, ()) if other is not own]
                if left:
                    self._inside[thread] = left
                self._end()

    def own(self) -> T | None:
        """What this thread has entered with last; None where it isn't inside."""
        inside = self._inside.get(threading.get_ident())
        return inside[-1][0] if inside else None

    def renew(self) -> None:
        """Keep what the present thread entered: in a forked child the other threads aren't there."""
        self._lock = threading.RLock()
        thread = threading.get_ident()
        self._inside = {thread: self._inside[thread]} if thread in self._inside else {}
        self._end()

    def _end(self) -> None:
        if not self._inside and self._back is not None:
            back, self._back = self._back, None
            back()
