"""Did a function change that a forward calls by its name? Some replace one for all models: ComfyUI's attention, say."""

from __future__ import annotations

import dis
import functools
import itertools
import operator
import sys
from collections.abc import Iterable, Iterator, Mapping
from types import BuiltinFunctionType, CodeType, FunctionType, MethodType, ModuleType
from typing import Any

from .places import Places

Names = dict[str, Any]
FUNCTIONS = (FunctionType, BuiltinFunctionType, MethodType, functools.partial)
_ENTRIES = ("forward", "_forward", "__call__")
_GIVEN = sys.stdlib_module_names | {"torch", "numpy"}  # nobody replaces what is in these, or what it computes with is recorded anyway
_STORES = dis.opmap["STORE_GLOBAL"]
_MARK = "_fast_compile_stands_for"


def stands_for(function: Any, original: Any) -> None:
    """Have a function that is put into the place of another for a while, in any thread, be no change."""
    setattr(function, _MARK, original)


class CalledGuard:
    """The functions that a module's forwards call by names of their files, and that those call, at the time of a trace.

    What a name stands for at run time isn't known, so a method counts as called where code that is reached uses a name like its own.

    Args:
        spaces: the namespaces of the classes of the module, of those below it and of the objects that they keep.
        own: functions that modules have of their own.

    Attributes:
        used: all names in the code that is reached.
    """

    def __init__(self, spaces: Iterable[Mapping[str, Any]], own: Iterable[Any] = ()) -> None:
        reached = _Reached(list(spaces), own)
        self.used = reached.used
        self._places = Places(reached.found.values())

    def changed(self) -> str | None:
        """What changed since the trace, in words, or None."""
        if self._places.same():
            return None
        different = map(operator.is_not, map(_itself, self._places.now()), map(_itself, self._places.then))
        changed = next(itertools.compress(zip(self._places.tables, self._places.names, strict=True), different), None)
        return None if changed is None else f"{changed[0].get('__name__')}.{changed[1]} changed"


class _Reached:
    """Everything that is called by name from ``forward`` on."""

    def __init__(self, spaces: list[Mapping[str, Any]], own: Iterable[Any]) -> None:
        self.found: dict[tuple[int, str], tuple[Names, str]] = {}  # names of a file, and one of them
        self.used: set[str] = set()
        self._spaces = spaces
        self._seen: set[FunctionType] = set()
        self._variables: dict[int, frozenset[str]] = {}  # of a file
        self._open = [function for value in own for function in functions_in(value)]
        self._use(_ENTRIES)
        while self._open:
            self._read(self._open.pop())

    def _use(self, names: Iterable[str]) -> None:
        new = set(names) - self.used
        self.used |= new
        for space in self._spaces:
            for name in new & space.keys():
                self._open += functions_in(space[name])

    def _read(self, function: FunctionType) -> None:
        if function in self._seen or is_given(function.__module__):
            return
        self._seen.add(function)
        names = {name for code in _nested(function.__code__) for name in (*code.co_names, *_words(code))}
        self._use(names)
        self._look_up(function.__globals__, names)
        for known in (*known_to(function), getattr(function, "__wrapped__", None)):
            self._open += functions_in(known)

    def _look_up(self, table: Names, names: set[str]) -> None:
        """Note which of these names of a file are functions, and look in the files that they name."""
        for name in names & table.keys():
            value, place = table[name], (id(table), name)
            if place in self.found:
                continue
            if isinstance(value, FUNCTIONS):
                if self._is_variable(table, name, value):
                    continue
                self.found[place] = table, name
                self._open += functions_in(value)
            elif isinstance(value, ModuleType) and not is_given(vars(value).get("__name__")) and vars(value) is not table:
                self._look_up(vars(value), names - {name})

    def _is_variable(self, table: Names, name: str, value: Any) -> bool:
        """Whether this is what a file keeps for a while: ComfyUI notes there whom to call when memory is short, another one for each prompt."""
        if _defined_in(table, name, value):
            return False
        if id(table) not in self._variables:
            self._variables[id(table)] = _set_by_own_code(table)
        return name in self._variables[id(table)]


def _defined_in(table: Names, name: str, value: Any) -> bool:
    return (getattr(value, "__module__", None), getattr(value, "__name__", None)) == (table.get("__name__"), name)


def _set_by_own_code(table: Names) -> frozenset[str]:
    """The names that a file's own functions set as they run."""
    own = (function.__code__ for value in list(table.values()) for function in functions_in(value) if function.__globals__ is table)
    setting = (code for outer in own for code in _nested(outer) if _STORES in code.co_code[::2])
    return frozenset(step.argval for code in setting for step in dis.get_instructions(code) if step.opcode == _STORES)


def _nested(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _nested(constant)


def _words(code: CodeType) -> Iterator[str]:
    """What may be a name that ``getattr`` is asked for."""
    return (constant for constant in code.co_consts if isinstance(constant, str) and constant.isidentifier())


def functions_in(value: Any) -> Iterator[FunctionType]:
    """The function of Python's that is run when this function, method or property is. Nothing else is asked for anything: it may be a proxy."""
    if isinstance(value, property):
        value = value.fget
    while isinstance(value, functools.partial):
        value = value.func
    if isinstance(value, (MethodType, staticmethod, classmethod)):
        value = value.__func__
    if isinstance(value, FunctionType):
        yield _itself(value)


def _itself(function: Any) -> Any:
    """What it stands for, see :func:`stands_for`."""
    return vars(function).get(_MARK, function) if isinstance(function, FunctionType) else function


def known_to(function: Any) -> Iterator[Any]:
    """What a function computes with besides its arguments and its file's names: the object that it belongs to, what it closes over."""
    while isinstance(function, functools.partial):
        yield from (*function.args, *function.keywords.values())
        function = function.func
    if isinstance(function, MethodType):
        yield function.__self__
        function = function.__func__
    yield from map(content_of, getattr(function, "__closure__", None) or ())


def content_of(cell: Any) -> Any:
    """What a function closes over there; None where it is empty."""
    try:
        return cell.cell_contents
    except ValueError:
        return None


def is_given(module: object) -> bool:
    """Whether a module of this name belongs to Python, PyTorch or NumPy: nobody's attributes or functions are looked for there."""
    return isinstance(module, str) and module.partition(".")[0] in _GIVEN
