"""Numbers that code reads of a tensor and only compares: how each comparison comes out is what steers it, not which
number it is.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Callable
from types import CodeType
from typing import Any

_SKIPPED = frozenset("NOP CACHE RESUME PRECALL EXTENDED_ARG NOT_TAKEN".split())
_LOADS = frozenset(
    "LOAD_FAST LOAD_FAST_BORROW LOAD_FAST_CHECK LOAD_CONST LOAD_CONST_IMMORTAL LOAD_SMALL_INT LOAD_DEREF"
    " PUSH_NULL".split()
)
_PAIRS = frozenset("LOAD_FAST_LOAD_FAST LOAD_FAST_BORROW_LOAD_FAST_BORROW".split())
_OF_TWO = frozenset({"BINARY_SUBSCR", "BINARY_OP"})
_OF_VARIABLES = frozenset({"LOAD_FAST", "LOAD_FAST_BORROW", "LOAD_FAST_CHECK"})
_ALL = frozenset({"locals", "vars", "eval", "exec"})


class Number(float):
    """A number that was read. ``noted`` is told of each comparison: its name, with what, and how it came out; of
    another use by ``__eq__`` with itself.
    """

    noted: Callable[[str, Any, bool], None]


def _comparing(name: str) -> Any:
    plain = getattr(float, name)

    def compare(self: Number, other: Any) -> Any:
        answer = plain(self, other)
        if type(answer) is bool and type(other) in (int, float, bool):
            self.noted(name, other, answer)
        else:
            self.noted("__eq__", float.__float__(self), True)
        return answer

    return compare


for _name in ("__lt__", "__le__", "__gt__", "__ge__", "__eq__", "__ne__"):
    setattr(Number, _name, _comparing(_name))
Number.__hash__ = float.__hash__  # type: ignore[method-assign]


def only_compared(code: CodeType, offset: int) -> bool:
    """Whether what the call at this offset of a function's code returns is compared with other values there, and
    nothing else.
    """
    steps, places = _steps(code)
    # it may be that of the call's cache
    place = next((place for place in range(len(steps) - 1, -1, -1) if steps[place].offset <= offset), None)
    if place is None or not steps[place].opname.startswith("CALL"):
        return False
    variable = _goes_to(steps, places, place + 1, 0)
    return variable is True or (isinstance(variable, str) and _variable_is_compared(code, variable))


@functools.lru_cache(maxsize=256)
def _variable_is_compared(code: CodeType, name: str) -> bool:
    if name in code.co_cellvars or not _ALL.isdisjoint(code.co_names):
        return False
    steps, places = _steps(code)
    for place, step in enumerate(steps):
        found: list[int] = []  # how many values are above it when it is loaded
        if step.opname in _OF_VARIABLES and step.argval == name:
            found = [0]
        elif step.opname in _PAIRS and name in step.argval:
            found = [above for above, each in ((1, step.argval[0]), (0, step.argval[1])) if each == name]
        elif step.opname == "STORE_FAST_LOAD_FAST" and step.argval[1] == name:
            found = [0]
        elif not step.opname.startswith(("STORE_FAST", "DELETE_FAST")) and (
            step.argval == name or (isinstance(step.argval, tuple) and name in step.argval)
        ):
            # another thing of that name
            if step.opname not in ("LOAD_ATTR", "LOAD_METHOD", "LOAD_CONST", "LOAD_GLOBAL", "STORE_ATTR", "KW_NAMES"):
                return False
        if any(_goes_to(steps, places, place + 1, above) is not True for above in found):
            return False
    return True


@functools.lru_cache(maxsize=256)
def _steps(code: CodeType) -> tuple[list[dis.Instruction], dict[int, int]]:
    steps = list(dis.get_instructions(code))
    return steps, {step.offset: place for place, step in enumerate(steps)}


def _goes_to(steps: list[dis.Instruction], places: dict[int, int], place: int, above: int) -> bool | str:
    """What becomes of a value with so many others above it on the stack: True where it is compared or dropped, the
    variable's name, False where that isn't known.
    """
    for _ in range(len(steps)):
        if place >= len(steps):
            return False
        step = steps[place]
        name, place = step.opname, place + 1
        if name in _SKIPPED:
            continue
        if name == "JUMP_FORWARD":
            place = places[step.argval]
        elif name == "STORE_FAST":
            return str(step.argval) if above == 0 else False
        elif name == "COMPARE_OP":
            if above <= 1:
                return True
            above -= 1
        elif name == "POP_TOP":
            if above == 0:
                return True
            above -= 1
        elif name in _LOADS:
            above += 1
        elif name == "LOAD_GLOBAL":
            above += 2 if "NULL" in step.argrepr else 1
        elif name in _PAIRS:
            above += 2
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            if above == 0:
                return False
            above += name == "LOAD_METHOD" or "NULL|self" in step.argrepr
        elif name in _OF_TWO:
            if above < 2:
                return False
            above -= 1
        else:
            return False
    return False
