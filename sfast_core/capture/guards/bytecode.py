"""What a function's code can read and write, found from its bytecode without running it.

The code is followed along its instructions with a stack of what is known: that a value is an attribute of an attribute
of an argument, say. Variables are followed without regard to order. What is not known is kept as such: an attribute of
it may be any object's.
"""

from __future__ import annotations

import dis
import functools
import inspect
import itertools
from collections.abc import Iterable, Iterator
from types import CodeType
from typing import Any

from ..instructions import CONSTANTS, JUMPS, LOADS, LOADS_PAIR, NO_EFFECT, STORES, loaded, loads_method, stored
from .chains import ITEM, Chain, CodeReads, read_everything, read_whole
from .stack import (
    DYNAMIC,
    GETTING,
    LEAVING,
    LISTING,
    MUTATORS,
    NAMING,
    NUMBERING,
    PUTTING,
    READING_WHOLE,
    SETTING,
    UNKNOWN,
    Value,
    Values,
    is_name,
)

_PASSES = 6  # over one function's instructions, until what is known of its variables stays
_NO_EFFECT = NO_EFFECT | JUMPS | frozenset("PUSH_NULL SETUP_LOOP SETUP_FINALLY POP_BLOCK CALL_INTRINSIC_0".split())
_MORE_LOADS = frozenset("LOAD_FAST_AND_CLEAR LOAD_CLASSDEREF LOAD_FROM_DICT_OR_DEREF".split())
_GLOBALS = frozenset("LOAD_GLOBAL LOAD_NAME LOAD_FROM_DICT_OR_GLOBALS".split())
_PLAIN_CALLS = frozenset("CALL CALL_FUNCTION CALL_METHOD".split())
_CALLS = _PLAIN_CALLS | frozenset("CALL_KW CALL_FUNCTION_KW".split())
_BUILDS = frozenset("BUILD_LIST BUILD_TUPLE BUILD_SET BUILD_MAP BUILD_CONST_KEY_MAP BUILD_STRING BUILD_SLICE".split())
#: What makes something of the topmost values, of so many.
_OPERATORS = {
    **dict.fromkeys(
        "UNARY_POSITIVE UNARY_NEGATIVE UNARY_NOT UNARY_INVERT TO_BOOL FORMAT_SIMPLE CONVERT_VALUE".split(), 1
    ),
    **dict.fromkeys(
        [
            "COMPARE_OP",
            *(  # before Python 3.11 there was one for each
                f"{kind}_{which}"
                for kind in ("BINARY", "INPLACE")
                for which in "ADD SUBTRACT MULTIPLY MATRIX_MULTIPLY TRUE_DIVIDE FLOOR_DIVIDE MODULO POWER LSHIFT RSHIFT"
                " AND OR XOR".split()
            ),
        ],
        2,
    ),
    "BINARY_SLICE": 3,
}
_ASKING = frozenset({"UNARY_NOT", "TO_BOOL"})  #: whether something is true
#: Functions of Python's own that read all of what they are given.
_WHOLE = frozenset("asdict astuple deepcopy getmembers".split())
_WHOLE_GLOBALS = frozenset("copy replace fields dumps pickle format pformat repr".split())
_BY_STRING = NAMING | GETTING


@functools.cache
def _known_codes() -> dict[int, tuple[CodeType, CodeReads]]:
    """What is known of code in this process, by the object: to find it out takes a millisecond, and code compares by
    value.
    """
    return {}


def reads_of(code: CodeType) -> CodeReads:
    """What ``code`` reads and writes; not what functions made within it do, which are code of their own. It is found
    out once, and whoever knows more adds to it.
    """
    codes = _known_codes()
    known = codes.get(id(code))
    if known is None or known[0] is not code:
        known = codes[id(code)] = code, _Reader(code).read()
    return known[1]


class _Reader(Values):
    def __init__(self, code: CodeType) -> None:
        flags = bool(code.co_flags & inspect.CO_VARARGS) + bool(code.co_flags & inspect.CO_VARKEYWORDS)
        super().__init__(
            code.co_name, (*code.co_varnames[: code.co_argcount + code.co_kwonlyargcount + flags], *code.co_freevars)
        )
        self._code = code
        self._steps = list(dis.get_instructions(code))

    def read(self) -> CodeReads:
        # along a list of objects that hold each other, say: the next may be any
        if not any(self._goes_through() for _ in range(_PASSES)):
            self._variables = {name: (chains, True) for name, (chains, _) in self._variables.items()}
            self._goes_through()
        if self._listings:
            read_everything(self._reads)
        if not _WHOLE.isdisjoint(self._code.co_names) or not _WHOLE_GLOBALS.isdisjoint(self._reads.globals):
            read_whole(self._reads)
        self._reads.words.update(_identifiers(self._code.co_consts))
        names = self._code.co_names
        self._reads.puts |= not PUTTING.isdisjoint(names)
        if not SETTING.isdisjoint(names) or ("__dict__" in names and not PUTTING.isdisjoint(names)):
            self._reads.rebound |= self._reads.words
        wrote = self._reads.stored or self._reads.stored_globals or self._reads.rebound or self._reads.puts
        self._reads.leaves |= bool(wrote) or not LEAVING.isdisjoint(names)
        if self._listings or not _BY_STRING.isdisjoint(self._code.co_names):
            self._reads.loose |= self._reads.words
        return self._reads

    def _goes_through(self) -> bool:
        """Follow all instructions once; whether no more came to be known of the variables."""
        before = {name: (len(chains), unknown) for name, (chains, unknown) in self._variables.items()}
        self._listings = 0
        for step in self._steps:
            if step.is_jump_target:
                self._escape_all()
            self._follow(step.opname, step)
        self._escape_all()
        return before == {name: (len(chains), unknown) for name, (chains, unknown) in self._variables.items()}

    def _follow(self, name: str, step: dis.Instruction) -> None:
        if name in _NO_EFFECT:
            return
        if name in LOADS or name in LOADS_PAIR:
            self._stack += map(self._variable, loaded(step))
        elif name in _MORE_LOADS:
            self._stack.append(self._variable(str(step.argval)))
        elif name in STORES:
            self._reads.leaves |= name == "STORE_DEREF" and step.argval in self._code.co_freevars
            for variable in stored(step):
                self._assign(variable, self._pop())
            self._stack += map(self._variable, loaded(step))
        elif name in CONSTANTS:
            self._stack.append(Value(constant=step.argval, is_constant=True))
        elif name in _GLOBALS:
            self._load_global(str(step.argval))
        elif name in ("LOAD_ATTR", "LOAD_METHOD"):
            self._stack.append(self._attribute(self._pop(), str(step.argval), is_method=loads_method(step)))
        elif name == "LOAD_SUPER_ATTR":
            of = self._pop()
            self._escape(self._pop())
            self._pop()
            self._stack.append(self._attribute(of, str(step.argval), is_method=True))
        elif name in ("BINARY_SUBSCR", "BINARY_OP"):
            self._binary(name, step)
        elif name in ("STORE_ATTR", "DELETE_ATTR"):
            self._store_attribute(str(step.argval), deletes=name == "DELETE_ATTR")
        elif name in ("STORE_SUBSCR", "DELETE_SUBSCR"):
            key = self._pop()
            self._escape(key)
            if key.is_constant and isinstance(key.constant, (str, int)):
                self._reads.rebound.add(key.constant)
            else:
                self._reads.puts = True
            self._write(self._pop())
            if name == "STORE_SUBSCR":
                self._escape(self._pop())
        elif name in ("STORE_GLOBAL", "DELETE_GLOBAL"):
            self._reads.stored_globals.add(str(step.argval))
            self._reads.rebound.add(str(step.argval))
            self._reads.globals.setdefault(str(step.argval), Chain())
            if name == "STORE_GLOBAL":
                self._escape(self._pop())
        elif name == "POP_TOP":
            self._pop()
        elif name in ("COPY", "DUP_TOP"):
            depth = step.arg or 1
            self._stack.append(self._stack[-depth] if depth <= len(self._stack) else UNKNOWN)
        elif name in ("SWAP", "ROT_TWO"):
            self._swap(step.arg if name == "SWAP" and step.arg else 2)
        elif name in ("IS_OP", "POP_JUMP_IF_NONE", "POP_JUMP_IF_NOT_NONE") or name.endswith(
            ("_IF_NONE", "_IF_NOT_NONE")
        ):
            self._identities(name)
        elif name == "CONTAINS_OP":
            self._contains()
        elif name == "MATCH_CLASS":
            self._match_class(step.arg or 0)
        elif name == "IMPORT_NAME":
            self._import(step)
        elif name == "IMPORT_FROM":
            self._stack.append(self._attribute(self._stack[-1] if self._stack else UNKNOWN, str(step.argval)))
        elif name in _BUILDS:
            for _ in range((step.arg or 0) * (2 if name == "BUILD_MAP" else 1) + (name == "BUILD_CONST_KEY_MAP")):
                self._escape(self._pop())
            self._stack.append(UNKNOWN)
        elif name in _OPERATORS:
            for _ in range(_OPERATORS[name]):
                self._escape(self._pop(), handed=name not in _ASKING)
            self._stack.append(UNKNOWN)
        elif name in _CALLS:
            self._call(name, step.arg or 0)
        else:
            if name == "STORE_NAME":  # of code that is given a dict for its names
                self._reads.rebound.add(str(step.argval))
            self._escape_all()

    def _identities(self, name: str) -> None:
        """Something is compared with None, or with another object by identity: nothing below it is read."""
        values = [self._pop()]
        if name == "IS_OP":
            values.append(self._pop())
            self._stack.append(UNKNOWN)
            if not any(value.is_constant for value in values):
                self._identify(values)
                found = (self._reads.name_of(*value.chains) for value in values if not value.unknown)
                self._reads.compares.add(tuple(filter(None, found)))

    def _identify(self, values: list[Value]) -> None:
        for value in values:
            for chain in value.chains:
                chain.identity = True

    def _match_class(self, positions: int) -> None:
        """Attributes of a matched subject: those in the pattern, and what its class says is meant by ``positions`` of
        it.
        """
        names, of_class, subject = self._pop(), self._pop(), self._pop()
        for attribute in names.constant or ():
            self._escape(self._attribute(subject, attribute))
        if positions:
            self._every(subject)
        self._escape(of_class)
        self._escape(subject)
        self._escape_all()

    def _contains(self) -> None:
        of, key = self._pop(), self._pop()
        known = key.is_constant and isinstance(key.constant, str) and of.chains
        if known:
            self._loaded(of, (ITEM, key.constant))
        if not known or any(chain.attributes_of is None for chain in of.chains):
            self._escape(key)
            self._escape(of)
        self._stack.append(UNKNOWN)

    def _binary(self, name: str, step: dis.Instruction) -> None:
        if name == "BINARY_OP" and "[" not in step.argrepr:
            self._escape(self._pop())
            self._escape(self._pop())
            self._stack.append(UNKNOWN)
            return
        key, of = self._pop(), self._pop()
        if (
            key.is_constant
            and isinstance(key.constant, (str, int))
            and of.chains
            and of.method is None
            and not of.unknown
        ):
            self._stack.append(self._loaded(of, (ITEM, key.constant)))
        else:
            self._escape(key)
            self._escape(of)
            self._stack.append(
                UNKNOWN if of.unknown or of.method is not None else Value(unknown=True, items_of=of.chains)
            )

    def _call(self, how: str, count: int) -> None:
        if how in ("CALL_KW", "CALL_FUNCTION_KW"):  # the names of keywords are on top
            self._pop()
        arguments = [self._pop() for _ in range(count)][::-1]
        called = self._pop()
        if called.builtin == "__import__" and arguments and isinstance(arguments[0].constant, str):
            keys = [
                (arguments[0].constant, 0, of_leaf) for of_leaf in ((False, True) if len(arguments) > 1 else (False,))
            ]
            self._stack.append(Value(tuple(self._reads.imports.setdefault(key, Chain()) for key in keys)))
            return
        self._reads.any_file |= called.builtin == "__import__"
        if called.builtin in DYNAMIC and len(arguments) >= 2:
            self._by_name(called.builtin, arguments)
            return
        if called.method == "get" and how in _PLAIN_CALLS and self._gets(called, arguments):
            return
        if called.builtin == "super" and not arguments and "__class__" in self._code.co_freevars:
            self._stack.append(self._first_argument())
            return
        if called.builtin in NUMBERING:
            self._identify(arguments)
            self._reads.numbered.update(value.variable for value in arguments if value.unknown)
            for chain in itertools.chain.from_iterable(value.chains for value in arguments):
                chain.numbered = True
        if called.builtin in NAMING:
            self._listings += not all(map(is_name, arguments[: 1 if called.builtin == "methodcaller" else None]))
        if called.method in GETTING and arguments:
            of = arguments[0] if len(arguments) > 1 else Value(called.chains, called.unknown)
            name = arguments[-1].constant
            if isinstance(name, str) and name not in GETTING:
                for argument in arguments:
                    self._escape(argument)
                value = self._attribute(of, name)
                self._stack.append(Value(value.chains, unknown=True))  # or what that method makes of it
                return
            if not self._is_name_that_is_asked_for(arguments[-1]):
                self._every(of)
            called = UNKNOWN
        if called.builtin in ("vars", "dir") and len(arguments) == 1:
            self._every(arguments[0])
        elif called.builtin in LISTING:
            self._listings += 1
        for argument in arguments:
            self._escape(argument)
            for chain in argument.chains:
                chain.given = True
            if called.method in READING_WHOLE:
                for chain in argument.chains:
                    chain.every = True
        if called.method in MUTATORS:
            for chain in called.chains:
                chain.written.add(str(called.method))
        else:
            self._escape(called, handed=False)
        self._stack.append(UNKNOWN)

    def _gets(self, called: Value, arguments: list[Value]) -> bool:
        """Whether this is ``d.get("key")`` or ``d.get("key", default)``, which reads one item where ``d`` is a dict."""
        key, *default = arguments or [UNKNOWN]
        if not (
            key.is_constant
            and isinstance(key.constant, (str, int))
            and called.chains
            and not called.unknown
            and len(default) <= 1
        ):
            return False
        for value in default:
            self._escape(value)
        # or the default
        self._stack.append(Value(self._loaded(Value(called.chains), (ITEM, key.constant)).chains, unknown=True))
        return True

    def _by_name(self, builtin: str, arguments: list[Value]) -> None:
        """``getattr`` and its like."""
        of, name, *others = arguments
        for other in others:
            self._escape(other)
        if not (name.is_constant and isinstance(name.constant, str)):
            self._escape(name)
            self._every(of)
            self._stack.append(UNKNOWN)
            return
        if builtin in ("setattr", "delattr"):
            self._store(of, name.constant)
            self._stack.append(UNKNOWN)
            return
        value = self._attribute(of, name.constant)
        self._stack.append(Value(value.chains, unknown=True))  # or the default

    def _every(self, of: Value) -> None:
        """Attributes by names that aren't known."""
        self._escape(of)
        for chain in of.chains:
            chain.every = True
        for chain in of.items_of:
            chain.every_item = True
        self._reads.dynamic = True
        if (of.unknown or not of.chains) and not of.items_of:
            self._listings += 1

    def _is_name_that_is_asked_for(self, value: Value) -> bool:
        """Whether it is the name that this ``__getattribute__``, or its like, is told: whoever asks has it in code."""
        names = self._code.co_varnames[1 : self._code.co_argcount]
        asked = self._reads.variables[names[0]] if self._code.co_name in GETTING and names else None
        return not value.unknown and value.chains == (asked,)

    def _first_argument(self) -> Value:
        return self._variable(self._code.co_varnames[0]) if self._code.co_argcount else UNKNOWN

    def _import(self, step: dis.Instruction) -> None:
        names, level = self._pop(), self._pop()
        known = isinstance(level.constant, int)
        key = (str(step.argval), level.constant if known else 0, bool(names.constant))
        chain = self._reads.imports.setdefault(key, Chain())
        self._stack.append(Value((chain,)))


def _identifiers(constants: Iterable[Any]) -> Iterator[str]:
    for constant in constants:
        if isinstance(constant, str):
            parts = constant.split(".")  # one below another, as attrgetter and get_submodule take them
            if all(part.isidentifier() or part.isdecimal() for part in parts):
                yield from filter(str.isidentifier, parts)
        elif isinstance(constant, (tuple, frozenset)):
            yield from _identifiers(constant)
