"""Whether a function that runs live may run twice for one call: it gives the same for the same arguments, and leaves
nothing behind, or what it would have left the second time alone.

Then a first call returns what all later ones will, in which that function is given what the program computes, not what
the module itself does.
"""

from __future__ import annotations

import dis
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FunctionType, ModuleType
from typing import Any

import torch

from ..guards import known_codes
from ..guards.chains import Chain
from ..guards.given import is_given
from ..guards.notes import MISSING, content_of

_PLAIN = (bool, int, float, complex, str, bytes, type(None), torch.dtype, torch.device)
_CHANGING = frozenset("pop popitem popleft setdefault setattr delattr exec eval next".split())
_DEEPEST = 8


class _Unknown(Exception):
    """It can't be told."""


@dataclass(frozen=True)
class State:
    """What a function's results may depend on besides its arguments and what Python and PyTorch bring.

    Attributes:
        parts: that, to be compared.
        looked_at: ids of the variables around it that it may look at.
        overwritten: of those that it only sets.
    """

    parts: Any
    looked_at: frozenset[int] = field(compare=False)
    overwritten: frozenset[int] = field(compare=False)


class _Seen:
    """What was come by on the way through a function: functions, and the variables around them, by id."""

    def __init__(self) -> None:
        self.functions: set[int] = set()
        self.looked_at: set[int] = set()
        self.overwritten: set[int] = set()


def state_of(function: Any) -> State | None:
    """A function's state before it runs.

    Returns:
        None where that can't be told, or where its code may change something else than that and its own arguments.
    """
    seen = _Seen()
    try:
        parts = _function(function, seen, 0)
    except _Unknown:
        return None
    return State(parts, frozenset(seen.looked_at), frozenset(seen.overwritten))


def may_run_twice(states: Iterable[State | None]) -> bool:
    """Whether functions with these states may all run twice for one call, in the same order, and give the same.

    Not where one sets a variable that another looks at: that may have looked before it was set.
    """
    known: list[State] = []
    for state in states:
        if state is None:
            return False
        known.append(state)
    overwritten = frozenset[int]().union(*(state.overwritten for state in known))
    return all(overwritten.isdisjoint(state.looked_at) for state in known)


def _function(function: Any, seen: _Seen, depth: int) -> Any:
    if type(function) is not FunctionType or depth > _DEEPEST:
        raise _Unknown
    if id(function) in seen.functions:
        return id(function)
    seen.functions.add(id(function))
    parts = [id(function.__code__)]
    cells = dict(zip(function.__code__.co_freevars, function.__closure__ or (), strict=True))
    overwritten = _overwritten(function.__code__)
    looked_at = [cell for name, cell in cells.items() if name not in overwritten]
    seen.looked_at.update(map(id, looked_at))
    seen.overwritten.update(id(cells[name]) for name in overwritten)
    contents = list(map(content_of, looked_at))
    for value in (contents, function.__defaults__, function.__kwdefaults__):
        parts.append(_value(value, seen, depth + 1))
    for code in _codes(function.__code__):
        _check(code)
        for name in known_codes().of(code).globals:
            if name in function.__globals__:
                parts.append(_value(function.__globals__[name], seen, depth + 1))
    return tuple(parts)


def _value(value: Any, seen: _Seen, depth: int) -> Any:
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


def _overwritten(code: CodeType) -> set[str]:
    """Variables around a function that it sets and doesn't look at: what an earlier run has put there is gone."""
    found: dict[str, set[str]] = {name: set() for name in code.co_freevars}
    for step in dis.get_instructions(code):
        for name in step.argval if isinstance(step.argval, tuple) else (step.argval,):
            if name in found and step.opcode in dis.hasfree:
                found[name].add(step.opname)
    return {name for name, ways in found.items() if ways == {"STORE_DEREF"}}


def _codes(code: CodeType) -> list[CodeType]:
    """A function's code, and that of the functions in it."""
    found = [code]
    for each in found:
        found += [const for const in each.co_consts if isinstance(const, CodeType)]
    return found


def _check(code: CodeType) -> None:
    reads = known_codes().of(code)
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
