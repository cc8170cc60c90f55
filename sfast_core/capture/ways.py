"""What becomes of a number that a function reads: whether it is compared with other values and nothing else, and with
which.

Found by following the function's code along all of its ways, without running it.
"""

from __future__ import annotations

import dis
import functools
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType, FrameType
from typing import Any

from .instructions import CONSTANTS, JUMPS, LOADS, LOADS_PAIR, NO_EFFECT, STORES, loaded, loads_method, stored

_MOST = 5000  # places in the code, each with what is on the stack
_ENDS = frozenset("RETURN_VALUE RETURN_CONST RAISE_VARARGS RERAISE".split())
_ROTATED = {"ROT_TWO": 2, "ROT_THREE": 3, "ROT_FOUR": 4}
#: What takes so many values more than it says, beside the called function: its object or nothing, and keywords' names.
_CALLS = {"CALL_FUNCTION": 0, "CALL": 1, "CALL_METHOD": 1, "CALL_FUNCTION_KW": 1, "CALL_KW": 2}
_ALL = frozenset({"locals", "vars", "eval", "exec"})
#: How a number is compared, by the sign, where it stands in front and where it stands behind.
_COMPARISONS = {
    "<": ("__lt__", "__gt__"),
    "<=": ("__le__", "__ge__"),
    ">": ("__gt__", "__lt__"),
    ">=": ("__ge__", "__le__"),
    "==": ("__eq__", "__eq__"),
    "!=": ("__ne__", "__ne__"),
}
#: What sets a value of a kind. Of an item the code says which one on the stack alone: any may be it.
_SETS = {"attribute": "STORE_ATTR", "item": "STORE_SUBSCR", "global": "STORE_GLOBAL"}
_DELETES = ("DELETE_FAST", "DELETE_DEREF")


@dataclass(frozen=True)
class Source:
    """Where a value comes from: a constant, a variable or a global by its name, an attribute or an item of another."""

    kind: str
    key: Any
    of: Source | None = None


@dataclass(frozen=True)
class Uses:
    """What becomes of a number.

    Attributes:
        comparisons: a method of the number's, and where what it is given comes from; None for what isn't known.
        as_float: ``float()`` is made of it, which is a plain number whatever it was.
        steady: what it is compared with lies there already when it is read.
    """

    comparisons: frozenset[tuple[str, Source | None]]
    as_float: bool
    steady: bool


_UNKNOWN = None
_NUMBER, _NULL, _FLOAT = Source("number", None), Source("null", None), Source("global", "float")
_ZERO = Source("constant", 0)
_Stack = tuple[Source | None, ...]


class _Otherwise(Exception):
    """The number is used in another way."""


@functools.lru_cache(maxsize=256)
def uses_of(code: CodeType, offset: int) -> Uses | None:
    """What becomes of what the call at this offset of a function's code returns; None where it isn't only compared."""
    ways = _Ways(code, offset)
    if ways.call is None or not _ALL.isdisjoint(code.co_names):
        return None
    try:
        known = None
        while known != len(ways.variables):  # those that hold it are found on the way
            known = len(ways.variables)
            ways.follow()
        ways.check()
    except _Otherwise:
        return None
    steady = all(ways.stays(source) for _, source in ways.comparisons)
    return Uses(frozenset(ways.comparisons), ways.as_float, steady)


def values_of(uses: Uses, frame: FrameType) -> list[tuple[str, float]] | None:
    """How, and with what, the number may be compared in this call of the function; None where that can't be said
    beforehand.
    """
    if not uses.steady or (uses.as_float and frame.f_globals.get("float", float) is not float):
        return None
    try:
        found = [(name, _value(source, frame)) for name, source in uses.comparisons]
    except (KeyError, IndexError, TypeError):
        return None
    return found if all(type(value) in (int, float, bool) for _, value in found) else None


def _value(source: Source | None, frame: FrameType) -> Any:
    """A value as it is kept: nothing is called for it."""
    if source is None:
        raise KeyError
    if source.kind == "constant":
        return source.key
    if source.kind == "local":
        return frame.f_locals[source.key]
    if source.kind == "global":
        return frame.f_globals[source.key]
    of = _value(source.of, frame)
    if source.kind == "attribute":
        in_class = next((vars(cls)[source.key] for cls in type(of).__mro__ if source.key in vars(cls)), None)
        if hasattr(type(in_class), "__set__"):  # a property, or a slot
            raise KeyError
        return vars(of)[source.key]
    if type(of) not in (dict, list, tuple):
        raise KeyError
    return of[source.key]


class _Ways:
    """All ways through one function.

    Args:
        code: its code.
        offset: of the call that returns the number.

    Attributes:
        call: that call's place among the instructions; None where there is none.
        variables: those that hold the number.
    """

    def __init__(self, code: CodeType, offset: int) -> None:
        self._code, self._steps = code, list(dis.get_instructions(code))
        self._places = {step.offset: place for place, step in enumerate(self._steps)}
        # the offset may be that of the call's cache
        before = (place for place in reversed(range(len(self._steps))) if self._steps[place].offset <= offset)
        place = next(before, None)
        self.call = place if place is not None and self._steps[place].opname in _CALLS else None
        self.variables: set[str] = set()
        self.comparisons: set[tuple[str, Source | None]] = set()
        self.as_float = False
        self._reached: set[int] = set()

    def follow(self) -> None:
        """Follow the instructions from the start of the function.

        Raises:
            _Otherwise: the number is used in another way than to be compared.
        """
        waiting: list[tuple[int, _Stack]] = [(0, ())]
        seen: set[tuple[int, _Stack]] = set()
        while waiting:
            state = waiting.pop()
            if state in seen or state[0] >= len(self._steps):
                continue
            seen.add(state)
            self._reached.add(state[0])
            if len(seen) > _MOST:
                raise _Otherwise
            waiting += self._step(*state)

    def check(self) -> None:
        """Raise :class:`_Otherwise` where the number is looked at in code that no way leads to: behind an exception."""
        if not self.variables.isdisjoint(self._code.co_cellvars):
            raise _Otherwise
        for place, step in enumerate(self._steps):
            if place not in self._reached and not self.variables.isdisjoint(loaded(step)):
                raise _Otherwise

    def stays(self, source: Source | None) -> bool:
        """Whether what lies there when the number is read lies there when it is compared."""
        if source is None or self.call is None:
            return False
        if source.kind == "local":
            if source.key in self._code.co_cellvars:  # functions in it may set it
                return False
            stores = [
                place
                for place, step in enumerate(self._steps)
                if source.key in stored(step) or (step.opname in _DELETES and step.argval == source.key)
            ]
            turns = [
                self._places[step.argval]
                for step in self._steps[self.call :]
                if _jumps(step) and self._places[step.argval] <= self.call
            ]
            return all(place < self.call and not any(turn <= place for turn in turns) for place in stores)
        sets = _SETS.get(source.kind)
        if any(step.opname == sets and (source.kind == "item" or step.argval == source.key) for step in self._steps):
            return False
        return source.of is None or self.stays(source.of)

    # -- one instruction --------------------------------------------------------------------------------------------

    def _step(self, place: int, stack: _Stack) -> Iterator[tuple[int, _Stack]]:
        """Where it goes on behind an instruction, and with what on the stack."""
        step, name = self._steps[place], self._steps[place].opname
        on = place + 1
        if name in NO_EFFECT:
            yield on, stack
        elif name in LOADS or name in LOADS_PAIR:
            yield on, (*stack, *map(self._variable, loaded(step)))
        elif name in CONSTANTS:
            known = type(step.argval) in (int, float, bool, str, type(None))
            yield on, (*stack, Source("constant", step.argval) if known else _UNKNOWN)
        elif name == "PUSH_NULL":
            yield on, (*stack, _NULL)
        elif name == "LOAD_GLOBAL":
            found = Source("global", step.argval)
            of_3_13 = step.argrepr.endswith("NULL")
            yield on, (*stack, *((found, _NULL) if of_3_13 else (_NULL, found) if "NULL" in step.argrepr else (found,)))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            *rest, of = stack or (_UNKNOWN,)
            self._not_it(of)
            attribute = Source("attribute", step.argval, of) if of is not _UNKNOWN else _UNKNOWN
            yield on, (*rest, *((_UNKNOWN, _UNKNOWN) if loads_method(step) else (attribute,)))
        elif name in STORES and name != "STORE_DEREF":  # which functions in it read
            yield on, self._stores(step, stack)
        elif name in ("COPY", "DUP_TOP"):
            depth = (step.arg or 1) if name == "COPY" else 1
            yield on, (*stack, stack[-depth] if depth <= len(stack) else _UNKNOWN)
        elif name == "SWAP" or name in _ROTATED:
            yield on, _turned(name, step.arg or 2, stack)
        elif name in ("COMPARE_OP", "IS_OP"):
            yield on, self._compares(name, step, stack)
        elif name in ("BINARY_SUBSCR", "BINARY_OP"):
            of, key = _top(stack, 2)
            self._not_it(of, key)
            item = (
                of is not _UNKNOWN and key is not _UNKNOWN and key.kind == "constant" and "[" in (step.argrepr or "[")
            )
            yield on, (*stack[:-2], Source("item", key.key, of) if item and key is not None else _UNKNOWN)
        elif name in _CALLS:
            yield on, self._calls(place, name, step.arg or 0, stack)
        else:
            yield from self._else(place, step, stack)

    def _else(self, place: int, step: dis.Instruction, stack: _Stack) -> Iterator[tuple[int, _Stack]]:
        name, on = step.opname, place + 1
        if name in JUMPS:
            yield self._places[step.argval], stack
        elif name.startswith("POP_JUMP"):
            self._is_asked(stack[-1] if stack else _UNKNOWN, name)
            yield on, stack[:-1]
            yield self._places[step.argval], stack[:-1]
        elif name in ("UNARY_NOT", "TO_BOOL"):
            self._is_asked(stack[-1] if stack else _UNKNOWN, name)
            yield on, (*stack[:-1], _UNKNOWN)
        elif name == "POP_TOP":
            yield on, stack[:-1]
        elif name in _ENDS:
            self._not_it(*stack[-1:])
        else:
            self._not_it(*stack)
            jump = _jumps(step)
            for leads_on in (False, True) if jump else (False,):
                depth = len(stack) + dis.stack_effect(step.opcode, step.arg, jump=leads_on)
                yield (self._places[step.argval] if leads_on else on), (_UNKNOWN,) * max(0, depth)

    def _variable(self, name: str) -> Source:
        return _NUMBER if name in self.variables else Source("local", name)

    def _stores(self, step: dis.Instruction, stack: _Stack) -> _Stack:
        for variable in stored(step):
            if stack and stack[-1] is _NUMBER:
                self.variables.add(variable)
            stack = stack[:-1]
        return (*stack, *map(self._variable, loaded(step)))

    def _compares(self, name: str, step: dis.Instruction, stack: _Stack) -> _Stack:
        pair = _top(stack, 2)
        if _NUMBER in pair:
            behind = pair[1] is _NUMBER
            other = pair[0] if behind else pair[1]
            if name == "COMPARE_OP" and step.argval in _COMPARISONS and other is not _NUMBER:
                self.comparisons.add((_COMPARISONS[step.argval][behind], other))
            elif other != Source("constant", None):
                raise _Otherwise
        return (*stack[:-2], _UNKNOWN)

    def _calls(self, place: int, name: str, count: int, stack: _Stack) -> _Stack:
        taken = count + 1 + _CALLS[name]
        given = _top(stack, taken)
        result = _NUMBER if place == self.call else _UNKNOWN
        if _NUMBER in given:
            if given[-1] is not _NUMBER or count != 1 or name.endswith("KW") or _FLOAT not in given:
                raise _Otherwise
            self.as_float, result = True, _NUMBER
        return (*stack[: max(0, len(stack) - taken)], result)

    def _is_asked(self, value: Source | None, name: str) -> None:
        """It is asked whether something is true, or is None."""
        if value is _NUMBER and "NONE" not in name:
            self.comparisons.add(("__ne__", _ZERO))

    @staticmethod
    def _not_it(*values: Source | None) -> None:
        if any(value is _NUMBER for value in values):
            raise _Otherwise


def _top(stack: _Stack, count: int) -> _Stack:
    return ((_UNKNOWN,) * count + stack)[-count:]


def _turned(name: str, arg: int, stack: _Stack) -> _Stack:
    """The stack with its topmost value and another exchanged, or with the topmost one lower."""
    depth = _ROTATED.get(name, arg)
    values = list(_top(stack, max(depth, len(stack))))
    if name == "SWAP":
        values[-1], values[-depth] = values[-depth], values[-1]
    else:
        values.insert(len(values) - depth, values.pop())
    return tuple(values)


def _jumps(step: dis.Instruction) -> bool:
    return step.opcode in dis.hasjrel or step.opcode in dis.hasjabs
