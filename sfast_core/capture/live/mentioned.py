"""Which names the code that runs live mentions, and which it may set.

What a recorded call leaves under a name that it doesn't mention, it doesn't find.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from ..guards.given import is_given
from ..guards.stack import MUTATORS, PUTTING
from .reach import below, inner_code, strings_in

_MOST = 5000  # things looked at: where there are more, any name may be among them
_STORING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
_PUTTING = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
#: Names by which something is put into a container, or set by a name that is computed.
_CHANGING = MUTATORS | PUTTING | {"pop", "popitem", "setattr", "delattr", "__dict__", "__setattr__", "vars", "globals"}


def mentioned_by(functions: Iterable[Any]) -> Callable[[str], bool]:
    """Asks whether a name is one of an attribute, a variable or a key in code that these functions may run, or that of
    these modules and those below them. By a name that is computed nothing is found.
    """
    found = _told_by(functions, _names)
    return (lambda name: True) if found is None else found.__contains__


def set_by(functions: Iterable[Any]) -> Callable[[Any], bool]:
    """Asks whether a name is one of an attribute or a variable that such code may set, or of a container that it may
    change.
    """
    found = _told_by(functions, _sets)
    return (lambda name: True) if found is None else found.__contains__


def _told_by(functions: Iterable[Any], names: Callable[[CodeType], Iterable[str]]) -> frozenset[str] | None:
    """All ``names`` of such code; None where it is too much."""
    found: set[str] = set()
    codes: set[CodeType] = set()
    seen: set[int] = set()
    waiting = list(functions)
    kept: list[Any] = []  # ids are others' once a value is gone
    while waiting:
        value = waiting.pop()
        if id(value) in seen:
            continue
        seen.add(id(value))
        kept.append(value)
        if len(seen) > _MOST:
            return None
        if type(value) is FunctionType and value.__code__ not in codes:
            codes.add(value.__code__)
            found.update(names(value.__code__))
        if isinstance(value, torch.nn.Module):
            waiting += _functions_of(value)
        elif not isinstance(value, (type, torch.Tensor)):
            waiting += below(value)
    return frozenset(found)


def _functions_of(module: torch.nn.Module) -> Iterator[Any]:
    for each in module.modules():
        yield from (value for value in vars(each).values() if isinstance(value, (FunctionType, MethodType)))
        for cls in type(each).__mro__:
            if not is_given(cls.__module__):
                yield from (value for value in vars(cls).values() if isinstance(value, FunctionType))


def _names(code: CodeType) -> Iterator[str]:
    for each in inner_code(code):
        yield from each.co_names
        yield from each.co_freevars
    yield from strings_in(code)


def _sets(code: CodeType) -> Iterator[str]:
    for each in inner_code(code):
        steps = list(dis.get_instructions(each))
        yield from (str(step.argval) for step in steps if step.opname in _STORING)
        by_method = not _CHANGING.isdisjoint(each.co_names) or any(step.opname in _PUTTING for step in steps)
        if by_method:  # which of them is changed, isn't looked for
            yield from _names(each)
