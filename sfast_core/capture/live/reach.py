"""Which code a function may run, as far as what it closes over, its file and its object tell: a first guess at what it looks for."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from ..guards import code_of
from ..guards.given import is_given, is_ours
from ..guards.notes import content_of

_MOST = 2000  # things looked at
_DEEPEST = 5


def kind_of_function(function: Any) -> Any:
    """What functions have in common that do the same, each with settings of its own: their code."""
    return code_of(function) or code_of(getattr(type(function), "__call__", None)) or type(function)


def words_of_function(function: Any) -> frozenset[str]:
    """The strings in the code that a function may run: the names of options that it looks for are among them."""
    return frozenset(word for code in _codes(function) for word in _strings(code))


def _codes(function: Any) -> list[CodeType]:
    found: dict[CodeType, None] = {}
    waiting: list[tuple[Any, int]] = [(function, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if type(value) is FunctionType:
            if is_given(value.__module__) or is_ours(value.__code__.co_filename):
                continue
            found[value.__code__] = None
        waiting += [(each, depth + 1) for each in _below(value)]
    return list(found)


def _below(value: Any) -> Iterator[Any]:
    """What a value leads to that may run."""
    if type(value) is FunctionType:
        yield from map(content_of, value.__closure__ or ())
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        names = {name for code in _inner(value.__code__) for name in code.co_names}
        yield from (item for name in names if isinstance(item := value.__globals__.get(name), FunctionType))
    elif isinstance(value, MethodType):
        yield from (value.__func__, value.__self__)
    elif isinstance(value, functools.partial):
        yield from (value.func, *value.args, *value.keywords.values())
    elif type(value) in (list, tuple):
        yield from value
    elif type(value) is dict:
        yield from value.values()
    elif not isinstance(value, (type, torch.Tensor, torch.nn.Module)) and not is_given(type(value).__module__):
        yield from (item for item in vars(type(value)).values() if isinstance(item, FunctionType))
        yield from getattr(value, "__dict__", {}).values()


def _inner(code: CodeType) -> list[CodeType]:
    """A function's code, and that of the functions in it."""
    found = [code]
    for each in found:
        found += [const for const in each.co_consts if isinstance(const, CodeType)]
    return found


def _strings(code: CodeType) -> Iterator[str]:
    for each in _inner(code):
        for constant in each.co_consts:
            if isinstance(constant, str):
                yield constant
            elif isinstance(constant, (tuple, frozenset)):
                yield from (item for item in constant if isinstance(item, str))
