"""Which Python functions run in this thread for the length of a call: the code that reads what steers it."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType
from typing import Any, Protocol

from .given import is_read

Started = Callable[[CodeType, FrameType], None]
_IDS = (3, 4, 1, 5, 2, 0)  # of tools that may watch at once; those without a use of their own first


class NotWatched(Exception):
    """Other tools watch already, and there is no room for one more."""


class Pausing(Protocol):
    """What a recorder tells while its own code runs, which is not to be watched."""

    def pause(self) -> None: ...

    def resume(self) -> None: ...


class Unwatched:
    """In the place of a watch where none is kept."""

    def pause(self) -> None:
        """Nothing to pause."""

    def resume(self) -> None:
        """Nothing to resume."""


class _Profiled(Unwatched):
    """By ``sys.setprofile``, for Python before 3.12. It calls for each function of C too, so it is off while the recorder works."""

    def __init__(self, started: Started) -> None:
        self._read: dict[str, bool] = {}
        self._started = started
        self._before: Any = None
        self._on = False

    def __enter__(self) -> _Profiled:
        self._before = sys.getprofile()
        if self._before is not None and not callable(self._before):  # cProfile's, which nothing but itself can put back
            raise NotWatched("a profiler of C's is at work")
        self._on = True
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._on:
            sys.setprofile(self._before)
            self._on = False

    def pause(self) -> None:
        """Stop watching for a moment."""
        sys.setprofile(None)

    def resume(self) -> None:
        """Go on."""
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event != "call":
            return
        path = frame.f_code.co_filename
        read = self._read.get(path)
        if read is None:
            read = self._read[path] = is_read(path)
        if read:
            self._started(frame.f_code, frame)


class _Monitored(Unwatched):
    """By ``sys.monitoring``, which is told once of each function that isn't to be watched, and forgets it until the next time."""

    def __init__(self, started: Started) -> None:
        self._started = started
        self._read: dict[str, bool] = {}
        self._thread = threading.get_ident()
        self._tool: int | None = None
        self._quiet = False

    def pause(self) -> None:
        """Hear nothing for a moment."""
        self._quiet = True

    def resume(self) -> None:
        """Go on."""
        self._quiet = False

    def __enter__(self) -> _Monitored:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        for tool in _IDS:
            if monitoring.get_tool(tool) is None:
                monitoring.use_tool_id(tool, "fast_compile")
                monitoring.register_callback(tool, monitoring.events.PY_START, self._start)
                monitoring.set_events(tool, monitoring.events.PY_START)
                monitoring.restart_events()  # a tool that had this number before may have had code forgotten
                self._tool = tool
                return self
        raise NotWatched("all of Python's monitoring tools are in use by others")

    def __exit__(self, *error: Any) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        if self._tool is not None:
            monitoring.set_events(self._tool, 0)
            monitoring.register_callback(self._tool, monitoring.events.PY_START, None)
            monitoring.free_tool_id(self._tool)
            monitoring.restart_events()  # and so may this one
            self._tool = None

    def _start(self, code: CodeType, offset: int) -> Any:
        path = code.co_filename
        read = self._read.get(path)
        if read is None:
            read = self._read[path] = is_read(path)
        if not read:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        if not self._quiet and threading.get_ident() == self._thread:
            self._started(code, sys._getframe(1))
        return None


@contextmanager
def watched(started: Started) -> Iterator[Pausing]:
    """Call ``started`` at the start of each Python function that this thread calls, but for those of files that aren't read.

    Raises:
        NotWatched: it can't be.
    """
    watch = (_Monitored if hasattr(sys, "monitoring") else _Profiled)(started)
    try:
        with watch:
            yield watch
    finally:
        watch.__exit__()  # an interruption may have come in front of its own; twice is the same as once
