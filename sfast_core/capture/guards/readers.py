"""In which function and which module a value was first looked at: what is another at each call is read by code that has
to run live.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, FunctionType, MethodType
from typing import Any, NamedTuple

import torch

from .given import is_ours

#: A value's place: the id of the table or the container that it is in, and its name there, or None.
Key = tuple[int, Any]
CALLS_A_MODULE: CodeType = torch.nn.Module._call_impl.__code__


class Reader(NamedTuple):
    """Who looked at a value first.

    Attributes:
        function: the code of the outermost function of tensors that the innermost module at work calls, and in which
            that was; None where there is none.
        module: that module, held weakly; None where it is the one that is recorded.
        others: the kind of the function of others that is recorded with the model's code, and within which that was;
            None where there is none.
    """

    function: CodeType | None
    module: weakref.ref[torch.nn.Module] | None
    others: Any = None


class Readers:
    """Who looked first at what a recorded call reads besides modules' own attributes, which have a place of their own
    in the model.

    Attributes:
        frame: of the function that starts now, and what it reads is looked at.
        of: the readers, by what they read.
        others: the kind of the function of others that is at work, or None.
    """

    def __init__(self) -> None:
        self.frame: FrameType | None = None
        self.of: dict[Key, Reader] = {}
        self.others: Any = None
        self._module: torch.nn.Module | None = None
        self._known: tuple[FrameType | None, Reader] = None, Reader(None, None)
        self._take_tensors: dict[int, tuple[CodeType, bool]] = {}  # functions that have started, by their code

    def plan(self, frame: FrameType) -> None:
        """A function of some code starts for the first time.

        Only now are its variables looked at: before Python 3.13 that keeps what is in them.
        """
        self.frame = frame
        self._take_tensors[id(frame.f_code)] = frame.f_code, _takes_tensors(frame)

    def note(self, key: Key) -> None:
        """Something is looked at, the first time it counts."""
        if key not in self.of:
            self.of[key] = self.now()

    def now(self) -> Reader:
        """The reader that is at work now."""
        if self._module is not None:
            return Reader(None, weakref.ref(self._module), self.others)
        if self._known[0] is not self.frame:
            self._known = self.frame, _reader(self.frame, self._take_tensors)
        return self._known[1] if self.others is None else self._known[1]._replace(others=self.others)

    @contextmanager
    def within(self, module: torch.nn.Module) -> Iterator[None]:
        """What is looked at now belongs to how this module is called."""
        before, self._module = self._module, module
        try:
            yield
        finally:
            self._module = before

    def done(self) -> None:
        """To be told when the function that was looked at has started."""
        self.frame = None
        self._known = None, self._known[1]


def function_in(value: Any) -> Any:
    """What a method or a ``functools.partial``, or one of the other, calls in the end."""
    while isinstance(value, (functools.partial, MethodType)):
        value = value.func if isinstance(value, functools.partial) else value.__func__
    return value


def code_of(value: Any) -> CodeType | None:
    """The code of the function that is called in the end."""
    function = function_in(value)
    return function.__code__ if isinstance(function, FunctionType) else None


def reader_at(frame: FrameType | None) -> Reader:
    """Who is at work where code of ours runs in this frame."""
    while frame is not None and is_ours(frame.f_code.co_filename):
        frame = frame.f_back
    return _reader(frame, {})


def _reader(frame: FrameType | None, known: dict[int, tuple[CodeType, bool]]) -> Reader:
    function = inner = None  # what is called by the one that ``frame`` is, on the way out
    while frame is not None and frame.f_code is not CALLS_A_MODULE and not is_ours(frame.f_code.co_filename):
        code, takes = known.get(id(frame.f_code)) or (frame.f_code, _takes_tensors(frame))
        function, inner = inner or function, code if takes else None
        frame = frame.f_back
    module = frame.f_locals.get("self") if frame is not None and frame.f_code is CALLS_A_MODULE else None
    return Reader(function, weakref.ref(module) if isinstance(module, torch.nn.Module) else None)


def _takes_tensors(frame: FrameType) -> bool:
    """Whether a function is given tensors, and no module: what it returns is computed of them, and it is no method of a
    model's.
    """
    code, found = frame.f_code, frame.f_locals
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + bool(code.co_flags & inspect.CO_VARARGS)]
    given = [
        item
        for name in names
        for value in (found.get(name),)
        for item in (value if isinstance(value, (list, tuple)) else (value,))
    ]
    return any(isinstance(item, torch.Tensor) for item in given) and not any(
        isinstance(item, torch.nn.Module) for item in given
    )


def variables_of(frame: FrameType) -> Mapping[str, Any]:
    """What the code that runs in a frame can read by a name of its own, closures included."""
    code = frame.f_code
    if not code.co_freevars or code.co_flags & inspect.CO_OPTIMIZED:
        return frame.f_locals
    around = frame.f_back  # a class's body: what it closes over isn't among its variables, but is its function's
    while around is not None and not around.f_code.co_flags & inspect.CO_OPTIMIZED:
        around = around.f_back
    outer = {} if around is None else around.f_locals
    return {**{name: outer[name] for name in code.co_freevars if name in outer}, **frame.f_locals}
