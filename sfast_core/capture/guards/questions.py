"""Questions about many things at once: how a library computes, what classes and functions are called, which classes
there are below others.
"""

from __future__ import annotations

import abc
import decimal
import functools
import itertools
import operator
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any

import torch

from .kinds import Kind, kind_of

_WORDS = (str, type(None))
#: What threads wait for, and what they are: by what is called or read, what is asked.
_CALLED_OF_THREADS = {"locked": "locked", "acquire": "locked", "is_set": "is_set", "is_alive": "is_alive"}
_READ_OF_THREADS = {each: each for each in ("name", "daemon", "ident", "native_id")}
_READ_OF_THREADS |= {"getName": "name", "isDaemon": "daemon"}


def questions_to(value: Any) -> dict[str, tuple[str, Callable[[], Any]]]:
    """What a thread, or what threads wait for, is asked by whoever reads such an attribute: its name, and how."""
    cls = type(value)
    if cls.__module__ == "builtins":  # as nearly all are
        return {}
    called = {name: (asks, getattr(value, asks)) for name, asks in _CALLED_OF_THREADS.items() if hasattr(cls, asks)}
    read = _READ_OF_THREADS if isinstance(value, threading.Thread) else {}
    return called | {name: (asks, functools.partial(getattr, value, asks)) for name, asks in read.items()}


def parts_of(then: tuple[int, ...], partial: weakref.ref[Any]) -> tuple[int, ...]:
    """Which function and arguments a ``functools.partial`` has, which it may be given anew; ``then`` where it is gone:
    another may be in its place.
    """
    value = partial()
    return then if value is None else (id(value.func), id(value.args), id(value.keywords))


def decimals() -> Any:
    """How numbers of ``decimal`` are computed in this thread."""
    context = decimal.getcontext()
    traps = " ".join(sorted(signal.__name__ for signal, on in context.traps.items() if on))
    return (context.prec, context.rounding, context.Emin, context.Emax, context.capitals, context.clamp, traps)


def arrays() -> Any:
    """How NumPy computes and prints."""
    import numpy

    return (
        numpy.geterr(),
        {name: value for name, value in numpy.get_printoptions().items() if kind_of(value) is Kind.VALUE},
    )


def of_tensors() -> tuple[int, ...]:
    """How many attributes the classes of tensors have: code may look for one that they haven't."""
    return len(vars(torch.Tensor)), len(vars(torch.nn.Parameter))


def registered(classes: Iterable[type]) -> Callable[[], Any]:
    """Which classes were registered as subclasses of abstract ones."""
    found = [cls for cls in classes if isinstance(cls, abc.ABCMeta)]
    known: list[Any] = [None, None]

    def ask() -> Any:
        token = abc.get_cache_token()
        if known[0] != token:  # somebody has registered something since
            known[:] = token, " ".join(_registrations(found))
        return known[1]

    return ask


def names_of_all(values: Iterable[Any], names: Iterable[str]) -> Callable[[], Any]:
    """What functions and classes are called, as one text."""
    found, read = list(values), sorted(names)
    each = [value for value in found for _ in read], read * len(found)
    then: list[Any] = []  # what they were
    others: list[int] = []  # which of those are no words, and may have changed in themselves
    text = ["", ""]  # of these, of all

    def ask() -> Any:
        now = list(map(getattr, *each, itertools.repeat(None)))
        said = str([now[index] for index in others]) if others else ""
        if not then or said != text[0] or not all(map(operator.is_, now, then)):
            then[:], others[:] = now, [index for index, value in enumerate(now) if type(value) not in _WORDS]
            text[:] = str([now[index] for index in others]) if others else "", "\n".join(map(str, now))
        return text[1]

    return ask


def subclasses_of_all(classes: Iterable[type]) -> Callable[[], Any]:
    """Which subclasses there are, as one text."""
    found: list[Any] = list(classes)
    return lambda: "\n".join(f"{id(cls)} {list(map(id, type.__subclasses__(cls)))}" for cls in found)


def _registrations(classes: Iterable[abc.ABCMeta]) -> Iterator[str]:
    seen: set[type] = set()
    waiting = list[type](classes)
    for cls in waiting:
        if cls in seen:
            continue
        seen.add(cls)
        waiting += type.__subclasses__(cls)
        if isinstance(cls, abc.ABCMeta) and (dump := getattr(abc, "_get_dump", None)) is not None:
            yield from (f"{id(cls)}:{id(each())}" for each in sorted(dump(cls)[0], key=id))
