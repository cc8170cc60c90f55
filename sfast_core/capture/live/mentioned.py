"""Which names the code that runs live mentions: what a recorded call leaves under another name, it doesn't find. And
which it sets: what the model reads by another name, it doesn't change.
"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType, MethodType
from typing import Any

import torch

from ..guards.given import is_given
from ..guards.kinds import carried
from ..guards.stack import MUTATORS, PUTTING
from .reach import below, inner_code, strings_in

_SETTING = frozenset({"STORE_ATTR", "DELETE_ATTR", "STORE_GLOBAL", "DELETE_GLOBAL", "STORE_DEREF", "DELETE_DEREF"})
_ITEMS = frozenset({"STORE_SUBSCR", "DELETE_SUBSCR", "STORE_SLICE"})
#: By these code may change what is in something, or set an attribute by a name that it computes.
_CHANGING = (
    MUTATORS
    | PUTTING
    | {"pop", "popitem", "setattr", "delattr", "__setattr__", "__delattr__", "__dict__", "vars", "globals"}
    | {"set", "reset", "fill", "put", "itemset"}
)
#: What code sets by a function of Python's or PyTorch's, by that function's name or that of its object.
_BY_FUNCTION = {
    "train": "training",
    "eval": "training",
    "environ": "_data",
    "register_forward_hook": "_forward_hooks",
    "register_forward_pre_hook": "_forward_hooks",
}
_MOST = 5000  # things looked at: where there are more, any name may be among them


def mentioned_by(functions: Iterable[Any]) -> Callable[[str], bool]:
    """Asks whether a name is one of an attribute, a variable or a key in code that these functions may run, or that of
    these modules and those below them. By a name that is computed nothing is found.
    """
    return _names_in(functions, _names)


def set_by(functions: Iterable[Any]) -> Callable[[str], bool]:
    """Asks whether such code may set an attribute or a variable of this name, or change what is in a list or dict that
    it has by this name.
    """
    return _names_in(functions, _set_names)


def _names_in(functions: Iterable[Any], names_of: Callable[[CodeType], Iterable[str]]) -> Callable[[str], bool]:
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
            return lambda name: True
        if type(value) is FunctionType and value.__code__ not in codes:
            codes.add(value.__code__)
            found.update(names_of(value.__code__))
        if isinstance(value, torch.nn.Module):
            waiting += _functions_of(value)
        elif isinstance(value, type):
            waiting += _methods_of(value)
        elif not isinstance(value, torch.Tensor):
            waiting += below(value)
            waiting += _classes_by_name(value)
    return found.__contains__


def _functions_of(module: torch.nn.Module) -> Iterator[Any]:
    for each in module.modules():
        yield type(each)
        for value in vars(each).values():
            yield value if isinstance(value, (FunctionType, MethodType)) else type(value)


def _methods_of(cls: type) -> Iterator[Any]:
    """The functions of a user's class, and those behind its properties, class methods and static ones."""
    for owner in cls.__mro__:
        for value in () if is_given(owner.__module__) else vars(owner).values():
            found = (value.fget, value.fset, value.fdel) if isinstance(value, property) else (carried(value),)
            yield from (each for each in found if isinstance(each, FunctionType))


def _classes_by_name(value: Any) -> Iterator[type]:
    """The classes that a function names, and those of objects that it names; of any other object its own."""
    if type(value) is FunctionType:
        names = {name for code in inner_code(value.__code__) for name in code.co_names}
        for found in (value.__globals__[name] for name in names & value.__globals__.keys()):
            yield found if isinstance(found, type) else type(found)
    else:
        yield type(value)


def _names(code: CodeType) -> Iterator[str]:
    for each in inner_code(code):
        yield from each.co_names
        yield from each.co_freevars
    yield from strings_in(code)


def _set_names(code: CodeType) -> Iterator[str]:
    for each in inner_code(code):
        changes = not _CHANGING.isdisjoint(each.co_names)
        yield from (_BY_FUNCTION[name] for name in each.co_names if name in _BY_FUNCTION)
        yield from ("get_" + name[4:] for name in each.co_names if name.startswith("set_"))  # of PyTorch's
        for step in dis.get_instructions(each):
            in_place = step.opname == "BINARY_OP" and step.argrepr.endswith("=")
            changes |= step.opname in _ITEMS or in_place or step.opname.startswith("INPLACE_")
            if step.opname in _SETTING:
                yield step.argval
        if changes:
            yield from _names(each)
