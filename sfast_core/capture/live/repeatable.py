"""Whether a function that runs live may run twice for one call: it gives the same for the same arguments, and leaves
nothing behind.

Then a first call returns what all later ones will, in which that function is given what the program computes, not what
the module itself does.
"""

from __future__ import annotations

from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ..guards import reads_of
from ..guards.chains import Chain
from ..guards.given import is_given
from ..guards.notes import MISSING, content_of
from .reach import inner_code

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CHANGING = frozenset(
    "pop popitem popleft setdefault setattr delattr exec eval next"
    " print warn warn_explicit print_exc print_exception print_stack".split()
)
_DEEPEST = 8


class _Unknown(Exception):
    """It can't be told."""


def state_of(function: Any) -> Any:
    """What a function's results may depend on besides its arguments and what Python and PyTorch bring, to be compared.

    Returns:
        None where that can't be told, or where its code may change something else than that and its own arguments.
    """
    try:
        return _function(function, set(), 0)
    except _Unknown:
        return None


def _function(function: Any, seen: set[int], depth: int) -> Any:
    if type(function) is not FunctionType or depth > _DEEPEST:
        raise _Unknown
    if id(function) in seen:
        return id(function)
    seen.add(id(function))
    parts = [id(function.__code__)]
    contents = [content_of(cell) for cell in function.__closure__ or ()]
    for value in (contents, function.__defaults__, function.__kwdefaults__):
        parts.append(_value(value, seen, depth + 1))
    for code in inner_code(function.__code__):
        _check(code)
        for name in reads_of(code).globals:
            if name in function.__globals__:
                parts.append(_value(function.__globals__[name], seen, depth + 1))
    return tuple(parts)


def _value(value: Any, seen: set[int], depth: int) -> Any:
    if isinstance(value, _PLAIN):
        return type(value), value
    if depth > _DEEPEST:
        raise _Unknown
    if type(value) in (list, tuple):
        return type(value), tuple(_value(item, seen, depth + 1) for item in value)
    if type(value) is dict:
        return dict, tuple((_value(key, seen, depth + 1), _value(item, seen, depth + 1)) for key, item in value.items())
    if type(value) in (set, frozenset):
        return type(value), frozenset(_value(item, seen, depth + 1) for item in value)
    if isinstance(value, ModuleType) and is_given(value.__name__):
        return id(value)
    if (
        value is MISSING
        or isinstance(value, (type, BuiltinFunctionType))
        or (type(value) is FunctionType and is_given(value.__module__))
    ):
        return id(value)
    return _function(value, seen, depth + 1)


def _check(code: CodeType) -> None:
    reads = reads_of(code)
    if reads.stored or reads.stored_globals or reads.imports or not _CHANGING.isdisjoint(code.co_names):
        raise _Unknown
    if any(_writes(chain) for chain in reads.globals.values()):
        raise _Unknown
    arguments = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if any(
        _writes(below) for name, chain in reads.variables.items() if name in arguments for below in chain.below.values()
    ):
        raise _Unknown  # into what is not its own: the call's options lie in what it is handed


def _writes(chain: Chain) -> bool:
    return bool(chain.written) or chain.stored or any(map(_writes, chain.below.values()))
