"""A function in the place of another for one thread and a while, as recording wants some of torch's and of a host's to
be.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType, FunctionType
from typing import Any

from ..machine.forks import OwnLock
from .guards import stands_for


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
    """It is called as the original is, and what is set on either is set on both: a function counts its calls on itself,
    which it finds by its name.
    """
    thread = threading.get_ident()

    def stand_in(*args: Any, **kwargs: Any) -> Any:
        return ours(original, *args, **kwargs) if threading.get_ident() == thread else original(*args, **kwargs)

    if type(original) is FunctionType:
        stand_in.__name__ = original.__name__
        stand_in.__qualname__ = original.__qualname__
        stand_in.__doc__ = original.__doc__
        stand_in.__module__, stand_in.__dict__ = original.__module__, original.__dict__
    stands_for(stand_in, original)
    return stand_in
