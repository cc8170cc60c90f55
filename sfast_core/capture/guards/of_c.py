"""Attributes that classes of C's compute, in no table of anybody's: a defaultdict's function, the arguments of an
error.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from functools import partial
from types import BuiltinFunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from .given import is_given
from .kinds import Kind, kind_of
from .notes import COMPUTED, MISSING

_LINK = "_lru_list_elem"  #: of a cache with a limit: Python's own class for one result
_RESULTS, _DEEPEST = 256, 4
_COMPARED = frozenset({Kind.VALUE, Kind.FUNCTION, Kind.CLASS})


def is_of_c(member: Any, name: str) -> bool:
    """Whether what a class has by a name is such an attribute, and none of those that Python itself keeps."""
    return (
        isinstance(member, GetSetDescriptorType)
        and not name.startswith("__")
        and is_given(member.__objclass__.__module__)
    )


def member_of(cls: type, name: str) -> Any:
    """What a class of Python's, PyTorch's or NumPy's has by this name, if it is such an attribute; else None.

    Not what every tensor tells of itself: the recorder hears of that, and a note of it would hold the tensor, each
    quantised input of a call's for one.
    """
    owner, member = next(((owner, vars(owner)[name]) for owner in cls.__mro__ if name in vars(owner)), (None, None))
    if owner is torch._C.TensorBase:
        return None
    of_c = is_of_c(member, name) or (
        isinstance(member, MemberDescriptorType) and is_given(member.__objclass__.__module__)
    )
    return member if of_c and not name.startswith("__") else None


def results_in(cached: Any) -> list[Any]:
    """What an ``lru_cache`` has kept: nothing but the collector sees it."""
    inside = [
        each
        for each in gc.get_referents(cached)
        if each is not vars(cached) and each is not cached.__wrapped__ and not isinstance(each, type)
    ]
    tables = [
        each for each in inside if type(each) is dict and any(type(item).__name__ == _LINK for item in each.values())
    ]
    if tables:  # the results themselves are among what is found, and keys with them
        return [each for each in inside if each is not tables[0] and type(each).__name__ != _LINK]
    return [result for each in inside if type(each) is dict for result in each.values()]


class Emptied:
    """How often the cache of a function was emptied: what it counts begins anew then, and what it kept is gone.

    What the function keeps for some arguments is taken to be what it would return, until somebody sees to it that it
    makes all of that anew. Of a cache that is full, or that keeps more than 256 results, only the counts tell.
    """

    def __init__(self, cached: Any) -> None:
        self._cached = weakref.ref(cached)
        self._counts, self._times = (0, 0), 0
        self._results: list[Callable[[], Any]] = []

    def __call__(self) -> int:
        if (cached := self._cached()) is not None:
            hits, misses, most, size = cached.cache_info()
            told = size <= _RESULTS and (most is None or misses <= most)  # one more makes none go
            found = list(_leaves(results_in(cached))) if told else []
            there = set(map(id, found))
            self._times += (
                hits < self._counts[0]
                or misses < self._counts[1]
                or (told and not all(id(held()) in there for held in self._results))
            )
            self._counts, self._results = (hits, misses), [held for leaf in found if (held := _held(leaf)) is not None]
        return self._times


def _leaves(value: Any, depth: int = 0) -> Iterator[Any]:
    """What results are made of."""
    if type(value) in (list, tuple, dict) and depth < _DEEPEST:
        for item in value.values() if type(value) is dict else value:
            yield from _leaves(item, depth + 1)
    else:
        yield value


def _held(leaf: Any) -> Callable[[], Any] | None:
    """Gives a plain value, and whatever else as long as others hold it; None where that can't be."""
    if kind_of(leaf) is Kind.VALUE:
        return lambda: leaf
    try:
        if isinstance(leaf, torch.Tensor) and not leaf.is_inference():
            return partial(_as_it_was, weakref.ref(leaf), leaf._version)
        return weakref.ref(leaf)
    except TypeError:
        return None


def _as_it_was(ref: weakref.ref[torch.Tensor], version: int) -> torch.Tensor | None:
    """A tensor that nothing was written to."""
    found = ref()
    return found if found is not None and found._version == version else None


def told(member: Any, value: Any) -> Any:
    """What such an attribute says now; COMPUTED where that is another object each time, or can't be compared."""
    try:
        found = member.__get__(value, type(value))
    except AttributeError:
        return MISSING
    except Exception:
        return COMPUTED
    return found if _is_compared(found) else COMPUTED


def _is_compared(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(_is_compared, value))
    return type(value) is BuiltinFunctionType or kind_of(value) in _COMPARED
