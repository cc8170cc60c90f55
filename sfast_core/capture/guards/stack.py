"""What is known of values while a function's code is followed: those on its stack, in its variables, and what is below
them.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from string import Formatter
from typing import Any

from .chains import ATTRIBUTE, Chain, CodeReads, Key

MUTATORS = frozenset(
    "append appendleft extend extendleft insert add update clear remove discard sort reverse rotate __setitem__"
    " write".split()
)
#: By which something else gets to where something is: items, and attributes by names that are constants.
PUTTING = frozenset("append appendleft extend extendleft insert update setdefault __setitem__ setitem".split())
SETTING = frozenset("setattr __setattr__".split())
#: What leaves something elsewhere, by a call.
LEAVING = MUTATORS | PUTTING | SETTING | frozenset("pop popitem popleft register_buffer register_parameter".split())
#: Functions that are given an attribute's name.
DYNAMIC = frozenset({"getattr", "hasattr", "setattr", "delattr"})
NAMING = frozenset({"attrgetter", "methodcaller"})
GETTING = frozenset({"__getattribute__", "__getattr__"})  #: methods by which an attribute is asked for
OTHERS = GETTING | {"__dict__"}  #: attributes by which others are asked for, by whatever name
#: methods that read any attribute of what they are given
READING_WHOLE = frozenset({"format", "format_map", "vformat", "__get__"})
NUMBERING = frozenset({"id", "hash"})  #: by which it is told which tensor one is
LISTING = frozenset({"vars", "dir", "locals", "eval", "exec", "globals"})


@dataclass(frozen=True)
class Value:
    """What may be on the stack: any of ``chains``, or something ``unknown``.

    A constant, and a built-in function by name.

    Of what is unknown it may be known that it is an item of one of ``items_of``, or which variable's it is.
    """

    chains: tuple[Chain, ...] = ()
    unknown: bool = False
    constant: Any = None
    is_constant: bool = False
    builtin: str | None = None
    method: str | None = None  # of ``chains``: the name of a method that was looked up on them
    items_of: tuple[Chain, ...] = ()
    variable: str | None = None


UNKNOWN = Value(unknown=True)


def is_name(value: Value) -> bool:
    """Whether it is the name of an attribute, or several with dots, and none by which others are asked for."""
    return isinstance(value.constant, str) and OTHERS.isdisjoint(value.constant.split("."))


def _takes_as_they_are(text: str) -> bool:
    """Whether what this is to format has its arguments in it, and no attributes or items of theirs."""
    try:
        return all(
            (field is None or not {".", "["} & set(field)) and _takes_as_they_are(specified or "")
            for _, field, specified, _ in Formatter().parse(text)
        )
    except ValueError:  # it can't be formatted
        return False


class Values:
    """The stack and the variables of one function, and what was read of them so far.

    Args:
        function: the name of the function.
        arguments: the names of variables that have a value from the start.
    """

    def __init__(self, function: str, arguments: Iterable[str]) -> None:
        self._made: Chain | None = None  # what this function makes
        self._reads = CodeReads()
        self._stack: list[Value] = []
        # what each may be, by id, and whether something unknown
        self._variables: dict[str, tuple[dict[int, Chain], bool]] = {}
        for name in arguments:
            chain = self._reads.variables[name] = Chain()
            self._variables[name] = ({id(chain): chain}, False)
        if function == "__init__":
            self._made = next(iter(self._reads.variables.values()), None)
        self._listings = 0  # how often values are read by names that aren't known

    def _variable(self, name: str) -> Value:
        chains, unknown = self._variables.get(name, ({}, True))
        for chain in chains.values():
            chain.loaded = True
        return Value(tuple(chains.values()), unknown or not chains, variable=name)

    def _assign(self, name: str, value: Value) -> None:
        chains, unknown = self._variables.get(name, ({}, False))
        if value.method is not None or value.builtin is not None:
            self._escape(value)
            value = UNKNOWN
        self._variables[name] = (
            {**chains, **{id(chain): chain for chain in value.chains}},
            unknown or value.unknown or not value.chains,
        )

    def _load_global(self, name: str) -> None:
        chain = self._reads.globals.setdefault(name, Chain())
        chain.loaded = True
        builtin = (
            name
            if name in DYNAMIC or name in LISTING or name in NAMING or name in ("super", "id", "hash", "__import__")
            else None
        )
        self._stack.append(Value((chain,), builtin=builtin))

    def _attribute(self, of: Value, name: str, is_method: bool = False) -> Value:
        if of.is_constant and isinstance(of.constant, str) and name in READING_WHOLE:
            # "{}".format(x) asks of x what f"{x}" does
            return UNKNOWN if name == "format" and _takes_as_they_are(of.constant) else Value(unknown=True, method=name)
        if of.unknown or not of.chains or of.method is not None:
            self._reads.loose.add(name)
        if of.method is not None:
            self._escape(of)
            return UNKNOWN
        # builtins.getattr, inspect's
        if (name == "__dict__" and of.unknown) or name in DYNAMIC or name in LISTING or name == "getattr_static":
            self._listings += 1
        for chain in of.chains:
            if chain.attributes_of is not None:
                chain.attributes_of.every = True
        if name in NAMING:  # operator's
            self._escape(of)
            return Value(self._loaded(of, (ATTRIBUTE, name)).chains, unknown=True, builtin=name)
        if name == "get":
            for chain in self._loaded(of, (ATTRIBUTE, name)).chains:
                chain.content = True
            if not is_method:
                self._escape(of)
            return Value(of.chains, of.unknown, method=name) if is_method else UNKNOWN
        if (is_method and name in MUTATORS) or name in GETTING or name in READING_WHOLE:
            self._loaded(of, (ATTRIBUTE, name))
            return Value(of.chains, of.unknown, method=name)
        return self._loaded(of, (ATTRIBUTE, name))

    def _loaded(self, of: Value, key: Key) -> Value:
        value = self._below(of, key)
        for chain in value.chains:
            chain.loaded = True
        return value

    def _below(self, of: Value, key: Key) -> Value:
        found = [chain.at(key) for chain in of.chains]
        deep = any(chain is None for chain in found)
        if deep and key[0] == ATTRIBUTE:
            self._reads.loose.add(key[1])
        if deep:
            self._escape(of)
        return Value(tuple(chain for chain in found if chain is not None), of.unknown or deep or not found)

    def _store_attribute(self, name: str, deletes: bool) -> None:
        self._store(self._pop(), name)
        if not deletes:
            self._escape(self._pop())

    def _store(self, of: Value, name: str) -> None:
        self._reads.stored.add(name)
        if of.unknown or any(chain is not self._made for chain in of.chains):
            self._reads.rebound.add(name)
        for chain in self._below(of, (ATTRIBUTE, name)).chains:
            chain.stored = True

    def _write(self, value: Value) -> None:
        for chain in value.chains:
            chain.written.add("__setitem__")
            if chain.attributes_of is not None:
                chain.attributes_of.every = True

    def _pop(self) -> Value:
        return self._stack.pop() if self._stack else UNKNOWN

    def _swap(self, depth: int) -> None:
        if depth <= len(self._stack):
            self._stack[-1], self._stack[-depth] = self._stack[-depth], self._stack[-1]
        else:
            self._escape_all()

    def _escape(self, value: Value, handed: bool = True) -> None:
        """It is used as what it is, in a way that isn't followed. ``handed``: see :class:`Chain`."""
        for chain in value.chains:
            chain.content = True
            chain.handed |= handed
            if chain.attributes_of is not None:
                chain.attributes_of.every = True
        if value.method in GETTING or value.builtin in DYNAMIC or value.builtin in LISTING:
            self._listings += 1
        if value.builtin in NUMBERING and handed:
            self._reads.numbered.add(None)

    def _escape_all(self) -> None:
        for value in self._stack:
            self._escape(value)
        self._stack.clear()
