"""Which Python functions run in this thread for the length of a call: the code that reads what steers it; and which it
calls that ask for something.
"""

from __future__ import annotations

import builtins
import functools
import io
import random
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CodeType, FrameType, MethodDescriptorType, MethodType
from typing import Any, Protocol

from ...reporting.reasons.calls import PROFILER, TOOLS
from ..random_state import drawing_functions, draws
from .asking import asking_functions, asks_for_itself, codes_that_ask, functions_that_ask, of_a_class
from .given import is_installed, is_read, may_be_asker
from .numbered import HASH
from .said import codes_that_say, says, writing_methods

Started = Callable[[CodeType, FrameType], None]
Asks = Callable[[Any, FrameType], None]
_IDS = (3, 4, 1, 5, 2, 0)  # of tools that may watch at once; those without a use of their own first


class NotWatched(Exception):
    """Other tools watch already, and there is no room for one more."""


class Pausing(Protocol):
    """What a recorder tells while its own code runs, which is not to be watched."""

    def pause(self) -> None: ...

    def resume(self, installed: bool = True) -> None: ...


class _Paths(dict[str, bool]):
    """What ``of`` says of files, each asked once."""

    def __init__(self, of: Callable[[str], bool]) -> None:
        super().__init__()
        self._of = of

    def __missing__(self, path: str) -> bool:
        found = self[path] = self._of(path)
        return found


class _OfC(dict[type, bool]):
    """Whether functions of C's that have an object of a class as their own are to be looked at."""

    def __missing__(self, cls: type) -> bool:
        found = self[cls] = cls is type or issubclass(cls, (io.IOBase, random.Random))
        return found


class Unwatched:
    """Stands in the place of a watch where nothing is watched."""

    def pause(self) -> None:
        """Do nothing: there is nothing to pause."""

    def resume(self, installed: bool = True) -> None:
        """Do nothing: there is nothing to resume."""


class _Profiled(Unwatched):
    """By ``sys.setprofile``, for Python before 3.12.

    It calls for each function of C too, so it is off while the recorder works.
    """

    def __init__(self, started: Started, asks: Asks) -> None:
        self._read, self._askers = _Paths(is_read), _Paths(may_be_asker)
        self._started, self._asks = started, asks
        self._asking, self._asking_codes = (
            {*functions_that_ask(), id(print), id(id)},
            codes_that_ask() | codes_that_say(),
        )
        self._of_c = _OfC()
        self._of_asking = frozenset(function.__code__.co_filename for function in self._asking_codes.values())
        self._before: Any = None
        self._on = False
        self._installed = True

    def __enter__(self) -> _Profiled:
        self._before = sys.getprofile()
        if self._before is not None and not callable(self._before):  # cProfile's, which nothing but itself can put back
            raise NotWatched(PROFILER())
        self._on = True
        sys.setprofile(self._event)
        return self

    def __exit__(self, *error: Any) -> None:
        if self._on:
            sys.setprofile(self._before)
            self._on = False

    def pause(self) -> None:
        """Stop watching for a moment."""
        if self._on:
            sys.setprofile(None)

    def resume(self, installed: bool = True) -> None:
        """Go on; ``installed``: with the code of installed packages."""
        self._installed = installed
        if self._on:
            sys.setprofile(self._event)

    def _event(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "call":
            path = frame.f_code.co_filename
            if self._read[path]:
                if self._installed or not is_installed(path):
                    self._started(frame.f_code, frame)
            elif (
                path in self._of_asking
                and (function := self._asking_codes.get(id(frame.f_code))) is not None
                and frame.f_back is not None
            ):
                self._asked(function, frame.f_back)
        elif event == "c_call" and (id(argument) in self._asking or self._of_c[type(argument.__self__)]):
            if frame.f_code is _PAUSE:
                return
            self._asked(argument, frame)
            if (argument is sys.getprofile or argument is sys.setprofile) and self._askers[frame.f_code.co_filename]:
                self.__exit__()  # it is to be told of what is there without us, or puts another there

    def _asked(self, function: Any, frame: FrameType) -> None:
        path = frame.f_code.co_filename
        if asks_for_itself(function, path):
            return
        if (
            says(function)
            or frame.f_code is HASH
            or draws(function)
            or (self._askers[path] and (self._installed or not is_installed(path)))
        ):
            self._asks(function, frame)


_PAUSE = _Profiled.pause.__code__


class _Monitored(Unwatched):
    """By ``sys.monitoring``, for one thread."""

    def __init__(self, started: Started, asks: Asks) -> None:
        self.started, self.asks = started, asks
        self._quiet = False
        self._installed = True
        self._tool = _tool()

    def pause(self) -> None:
        """Hear nothing for a moment."""
        self._quiet = True

    def resume(self, installed: bool = True) -> None:
        """Go on; ``installed``: with the code of installed packages."""
        self._quiet, self._installed = False, installed

    def __enter__(self) -> _Monitored:
        self._before = self._tool.set(self)
        return self

    def __exit__(self, *error: Any) -> None:
        self._tool.set(self._before)

    def hears(self, path: str, function: Any = None) -> bool:
        """Whether it is told of code of this file now, or that this calls ``function``."""
        return not self._quiet and (self._installed or draws(function) or not is_installed(path))


class _Tool:
    """The number among Python's monitoring tools that this package has, from the first recorded call on.

    It is kept: that code isn't to be watched is forgotten at no end of a recording, and taking a number anew would mean
    to ask of each function of the process again (0.2 s for SDXL, H100's host).

    Raises:
        NotWatched: all numbers are taken.
    """

    def __init__(self) -> None:
        monitoring = sys.monitoring  # type: ignore[attr-defined]
        number = next((number for number in _IDS if monitoring.get_tool(number) is None), None)
        if number is None:
            raise NotWatched(TOOLS())
        monitoring.use_tool_id(number, "fast_compile")
        monitoring.register_callback(number, monitoring.events.PY_START, self._start)
        monitoring.register_callback(number, monitoring.events.CALL, self._call)
        monitoring.restart_events()  # who had this number before may have had code forgotten
        self._number = number
        self._read, self._askers = _Paths(is_read), _Paths(may_be_asker)
        # Not by ids: where an audit hook is there (filelock has one), Python tells it of each: 9 ms for SDXL.
        self._asking = frozenset(
            filter(
                _by_identity,
                [*asking_functions(), builtins.print, builtins.id, *drawing_functions(), *writing_methods()],
            )
        )
        self._kinds = frozenset(map(type, self._asking))
        self._watches: dict[int, _Monitored] = {}  # by thread
        self._lock = threading.Lock()

    def set(self, watch: _Monitored | None) -> _Monitored | None:
        """Let ``watch`` hear of this thread's functions from now on, or nobody. Returns who did."""
        thread, events = threading.get_ident(), sys.monitoring.events  # type: ignore[attr-defined]
        with self._lock:
            before = self._watches.pop(thread, None)
            if watch is not None:
                self._watches[thread] = watch
            sys.monitoring.set_events(self._number, events.PY_START | events.CALL if self._watches else 0)  # type: ignore[attr-defined]
        return before

    def _start(self, code: CodeType, offset: int) -> Any:
        path = code.co_filename
        says_it = None if self._read[path] else codes_that_say().get(id(code))
        if not self._read[path] and says_it is None:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        watch = self._watches.get(threading.get_ident())
        if watch is not None and watch.hears(path):
            frame = sys._getframe(1)
            if says_it is None:
                watch.started(code, frame)
            elif frame.f_back is not None:
                watch.asks(says_it, frame.f_back)
        return None

    def _call(self, code: CodeType, offset: int, function: Any, first: Any) -> Any:
        path = code.co_filename
        if not self._askers[path] and code is not HASH:
            return sys.monitoring.DISABLE  # type: ignore[attr-defined]
        called = function.__func__ if type(function) is MethodType else function
        if (type(called) in self._kinds and called in self._asking) or of_a_class(function):
            if asks_for_itself(function, path):
                return None
            watch = self._watches.get(threading.get_ident())
            bound = function.__get__(first) if type(function) is MethodDescriptorType else function
            if watch is not None and watch.hears(path, bound):
                watch.asks(bound, sys._getframe(1))
        return None


def _by_identity(function: Any) -> bool:
    """Whether one is a function, that no other is equal to; what a class has for ``datetime.now`` is none."""
    return callable(function) and type(function).__hash__ is not None


@functools.cache
def _tool() -> _Tool:
    return _Tool()


@contextmanager
def watched(started: Started, asks: Asks) -> Iterator[Pausing]:
    """Call ``started`` at the start of each Python function that this thread calls, but for those of files that aren't
    read.

    And ``asks`` in front of each call of a function that :mod:`.asking` knows, with the frame that calls it.

    Raises:
        NotWatched: it can't be.
    """
    watch = (_Monitored if hasattr(sys, "monitoring") else _Profiled)(started, asks)
    try:
        with watch:
            yield watch
    finally:
        watch.__exit__()  # an interruption may have come in front of its own; twice is the same as once
