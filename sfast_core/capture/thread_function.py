"""A function in the place of another for one thread and a while, as recording wants some of torch's and of a host's to
be.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType, MethodType
from typing import Any

from ..machine.forks import OwnLock
from .guards import PartialInPlace, stands_for


@functools.cache
def one_recording(what: str) -> OwnLock:
    """What to hold while functions of these are replaced: two recordings that overlap would put each other's functions
    back.
    """
    return OwnLock()


@contextmanager
def in_place_of(owner: Any, name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """Let ``ours`` be called where this thread calls ``owner.name``: it is given that function, and then the arguments.

    Other threads pass through to it. It is put back however the context ends. One context at a time, by
    :func:`one_recording`, or one inside the other.
    """
    original = getattr(owner, name)
    try:
        setattr(owner, name, _stand_in(original, ours))
        yield
    finally:
        setattr(owner, name, original)


@contextmanager
def in_table(table: dict[str, Any], name: str, ours: Callable[..., Any]) -> Iterator[None]:
    """The same for the function that is at a name in a dictionary: the attributes of an object,
    or the names of a file.
    """
    original = table[name]
    try:
        table[name] = _stand_in(original, ours)
        yield
    finally:
        table[name] = original


@contextmanager
def in_cell(cell: CellType, ours: Callable[..., Any]) -> Iterator[None]:
    """The same for the function that others close over."""
    original = cell.cell_contents
    try:
        cell.cell_contents = _stand_in(original, ours)
        yield
    finally:
        cell.cell_contents = original


def _stand_in(original: Callable[..., Any], ours: Callable[..., Any]) -> Callable[..., Any]:
    """It is called as the original is, and of the original's kind: what code reads of either it reads of both, and what
    is set on either is set on both. A function counts its calls on itself, which it finds by its name.
    """
    thread = threading.get_ident()

    def called(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs) if threading.get_ident() == thread else original(*args, **kwargs)

    if type(original) is functools.partial:
        return PartialInPlace(original, called)
    if type(original) is MethodType and type(original.__func__) is FunctionType:

        def method(self: Any, *args: Any, **kwargs: Any) -> Any:
            return called(*args, **kwargs)

        _dress(method, original.__func__)
        stands_for(method, original)
        return MethodType(method, original.__self__)
    if type(original) is FunctionType:
        _dress(called, original)
    stands_for(called, original)
    return called


def _dress(ours: Any, original: FunctionType) -> None:
    for name in ("__name__", "__qualname__", "__doc__", "__module__", "__dict__", "__defaults__", "__annotations__"):
        setattr(ours, name, getattr(original, name))
