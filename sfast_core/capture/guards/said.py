"""What a call says in passing: it prints, logs, warns, or writes to a file that was there before.

Nobody would say that again at a later call. What is said once, as most warnings are, the next call doesn't say.
"""

from __future__ import annotations

import builtins
import functools
import io
import logging
import traceback
import warnings
import weakref
from types import BuiltinFunctionType, FrameType, FunctionType, MethodDescriptorType
from typing import Any, NamedTuple

from .given import is_importing, is_of_torch
from .readers import Reader, Readers

_WRITING = frozenset({"write", "writelines"})
#: Python's own, with the files or classes that have them, and in words: these run where something isn't filtered.
_OF_PYTHON = {
    "_showwarnmsg": (warnings, "a warning"),
    "callHandlers": (logging.Logger, "a logger"),
    "print_list": (traceback, "a traceback"),
    "print_exception": (traceback, "a traceback"),
}


class Saying(NamedTuple):
    """Something was said.

    Attributes:
        by: by what, in words.
        to: the file or text that it was written to, held weakly; None where that isn't known.
        reader: who said it.
    """

    by: str
    to: weakref.ref[Any] | None
    reader: Reader


class Said:
    """What one recorded call says."""

    def __init__(self) -> None:
        self._all: list[Saying] = []

    def note(self, function: Any, frame: FrameType, readers: Readers) -> None:
        """What runs in this frame is about to call ``function``, which says something.

        A file that is imported writes what of it is compiled; and what PyTorch warns of, it does in C, too, unseen.
        """
        if is_importing(frame) or is_of_torch(frame.f_code.co_filename):
            return
        readers.frame = frame
        to = weakref.ref(function.__self__) if isinstance(getattr(function, "__self__", None), io.IOBase) else None
        _, by = _OF_PYTHON.get(function.__name__, (None, function.__name__))
        self._all.append(Saying(by, to, readers.now()))
        readers.done()

    def heard(self) -> list[Saying]:
        """When the call is over: without what was written to text that has gone with the call."""
        return [each for each in self._all if each.to is None or each.to() is not None]


def says(function: Any) -> bool:
    """Whether a function, or a bound method of C's, says something where it is called."""
    if type(function) is BuiltinFunctionType:
        return function is builtins.print or (
            isinstance(function.__self__, io.IOBase) and function.__name__ in _WRITING
        )
    return type(function) is FunctionType and id(function.__code__) in codes_that_say()


@functools.cache
def codes_that_say() -> dict[int, FunctionType]:
    """Functions of Python's that say something, by the ids of their code."""
    functions = [vars(owner)[name] for name, (owner, _) in _OF_PYTHON.items() if name in vars(owner)]
    return {id(function.__code__): function for function in functions}


def writing_methods() -> list[MethodDescriptorType]:
    """The methods of C's by which files are written to, as their classes have them."""
    classes = [cls for cls in vars(io).values() if isinstance(cls, type) and issubclass(cls, io.IOBase)]
    return [
        method
        for cls in classes
        for owner in cls.__mro__
        for name in _WRITING
        if type(method := vars(owner).get(name)) is MethodDescriptorType
    ]
