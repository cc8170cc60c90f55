"""Which code a function may run, as far as what it closes over, its file and its object tell: a first guess at what it
looks for and does.
"""

from __future__ import annotations

import dis
import functools
import random
from collections.abc import Iterator, Mapping
from types import CodeType, FunctionType, MappingProxyType, MethodType
from typing import Any, NamedTuple

import torch

from ..guards import code_of
from ..guards.given import is_given, is_ours
from ..guards.notes import content_of
from .modules import DRAWING

_MOST = 2000  # things looked at
_DEEPEST = 5
_DRAWING = DRAWING - {name for name in DRAWING if "dropout" in name}  # those draw while a module is trained
_MAKING = ("__init__", "__new__", "__post_init__")
_STATEFUL = (Iterator, torch.Generator, random.Random)


def kind_of_function(function: Any) -> Any:
    """What functions have in common that do the same, each with settings of its own: their code."""
    return _own_code(function) or type(function)


def _own_code(function: Any) -> CodeType | None:
    """That of a function, or of what an object does when it is called."""
    return code_of(function) or code_of(type(function).__call__)


class Reach(NamedTuple):
    """What is known of a function beforehand.

    Attributes:
        words: strings in the code that it may run: the names of options that it looks for are among them.
        refused: why no record can hold what it does, or None.
        sets: the variables outside of it that it sets, by the ids of their cells.
        closes_over: all that it has such a cell of, by the ids; what each is called.
    """

    words: frozenset[str]
    refused: str | None = None
    sets: frozenset[int] = frozenset()
    closes_over: Mapping[int, str] = MappingProxyType({})


def reach_of(function: Any) -> Reach:
    """What is known beforehand of this function."""
    codes, stateful = _codes(function)
    words = frozenset(word for code in codes for word in strings_in(code))
    closes_over = _cells(function)
    sets = frozenset(cell for cell, name in closes_over.items() if name in set_outside(function))
    refused = _refused(function, codes, stateful)
    return Reach(words, refused, sets, closes_over)


def _refused(function: Any, codes: list[CodeType], stateful: Any) -> str | None:
    if stateful is not None:
        return f"it keeps a {type(stateful).__name__}"
    if (kept := _keeps(function)) is not None:
        return f"it keeps {kept} from call to call"
    names = {name for code in codes for each in inner_code(code) for name in each.co_names}
    drawing = sorted(names & _DRAWING)
    return f"it may draw random numbers ({drawing[0]})" if drawing else None


def _cells(function: Any) -> dict[int, str]:
    own = function.__func__ if type(function) is MethodType else function
    if type(own) is not FunctionType:
        return {}
    return {id(cell): name for cell, name in zip(own.__closure__ or (), own.__code__.co_freevars, strict=True)}


def set_outside(function: Any) -> set[str]:
    """The names of variables that a function's own code sets and that are another's."""
    own = _own_code(function)
    steps = [] if own is None else [step for code in inner_code(own) for step in dis.get_instructions(code)]
    return {str(step.argval) for step in steps if step.opname == "STORE_DEREF"}


def _keeps(function: Any) -> str | None:
    """What a function both sets and reads in its own code: a count, its last result. None where nothing is seen."""
    own = _own_code(function)
    for code in [] if own is None else inner_code(own):
        steps = [(step.opname, step.argval) for step in dis.get_instructions(code)]
        read = {name for opname, name in steps if opname.startswith(("LOAD_ATTR", "LOAD_GLOBAL"))}
        outer = own.co_freevars if own is not None else ()
        for opname, name in steps:
            if (opname in ("STORE_ATTR", "STORE_GLOBAL") and name in read) or (
                opname == "STORE_DEREF" and name in outer
            ):
                return str(name)
    return None


def _codes(function: Any) -> tuple[list[CodeType], Any]:
    """The code that it may run, and something among what it leads to that has a state which nobody can see, or None."""
    found: dict[CodeType, None] = {}
    stateful = None
    waiting: list[tuple[Any, int]] = [(function, 0)]
    seen: set[int] = set()
    while waiting and len(seen) < _MOST:
        value, depth = waiting.pop()
        if id(value) in seen or depth > _DEEPEST:
            continue
        seen.add(id(value))
        if stateful is None and isinstance(value, _STATEFUL):
            stateful = value
        if type(value) is FunctionType:
            if is_given(value.__module__) or is_ours(value.__code__.co_filename):
                continue
            found[value.__code__] = None
        waiting += [(each, depth + 1) for each in below(value)]
    return list(found), stateful


def below(value: Any) -> Iterator[Any]:
    """What a value leads to that may run."""
    if type(value) is FunctionType:
        yield from map(content_of, value.__closure__ or ())
        yield from value.__defaults__ or ()
        yield from (value.__kwdefaults__ or {}).values()
        names = {name for code in inner_code(value.__code__) for name in code.co_names}
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
        yield from (
            item for name, item in vars(type(value)).items() if isinstance(item, FunctionType) and name not in _MAKING
        )
        yield from getattr(value, "__dict__", {}).values()


def inner_code(code: CodeType) -> list[CodeType]:
    """A function's code, and that of the functions in it."""
    found = [code]
    for each in found:
        found += [const for const in each.co_consts if isinstance(const, CodeType)]
    return found


def strings_in(code: CodeType) -> Iterator[str]:
    """The constant texts in it, and in the functions in it."""
    for each in inner_code(code):
        for constant in each.co_consts:
            if isinstance(constant, str):
                yield constant
            elif isinstance(constant, (tuple, frozenset)):
                yield from (item for item in constant if isinstance(item, str))
