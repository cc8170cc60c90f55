"""What is noted of the values that a recorded call reads: what they were when they were first seen."""

from __future__ import annotations

import threading
import weakref
from collections import OrderedDict
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import CellType, CodeType, FunctionType, GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from .chains import Chain
from .given import itself
from .kinds import Kind
from .origin import Origin

Table = dict[str, Any]
MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "nothing"})()
_GIVES = ("keys", "values", "items", "__len__", "__iter__")  # by which a mapping gives what it holds
COMPUTED: Any = type("_Computed", (), {"__repr__": lambda self: "what code makes of it"})()


class Weakly(weakref.ref[Any]):
    """What an attribute was, where that may die within the call as it does without us."""


def as_it_was(value: Any) -> Any:
    """What an attribute was; MISSING where that is gone."""
    if type(value) is not Weakly:
        return value
    found = value()
    return MISSING if found is None else found


@dataclass(eq=False, slots=True)
class Seen:
    """One object of which something is read.

    Attributes:
        value: it; None where it is held weakly.
        table: its attributes.
        before: what they were when it was first seen.
        parts: a module's parameters, buffers and children, likewise.
        found: the attributes that are read, and what they were. Where each lies, its name and its class tell:
            :func:`.attributes.rows_of`.
        stored: those that are only set.
        chains: what was noted of it; by the objects, since another chain may have the place of one that is gone.
        every: whatever attributes there are may be read.
        chains: what is read of it, as far as that was looked at. They are held: the next code's would be made in the
            memory of one that is gone.
        made: it was made in this call, before its ``__init__`` ran.
        computed: attributes that may not be there are asked for, by names that aren't known.
        live: it is a module that ran live: what was changed of it and not read or set by other code is its own
            business.
    """

    kind: Kind
    cls: type
    origin: Origin | None
    table: Table | None
    before: Table
    value: Any = None
    ref: weakref.ref[Any] | None = None
    parts: list[tuple[Table, Table]] = field(default_factory=list)
    found: dict[str, Any] = field(default_factory=dict)
    stored: set[str] = field(default_factory=set)
    chains: set[Chain] = field(default_factory=set)
    every: bool = False
    made: bool = False
    computed: bool = False
    live: bool = False

    def get(self) -> Any:
        """The object, or None where it is gone."""
        return self.value if self.ref is None else self.ref()

    def let_go(self) -> None:
        """Forget what the object had: it is gone, and so would that be."""
        self.before.clear()
        self.found.clear()
        self.table = None


@dataclass(eq=False, slots=True)
class Held:
    """One container: what was in it when it was first seen.

    Attributes:
        read: its content is read. If not, only something is put into it.
        written: by which methods.
    """

    kind: Kind
    value: Any
    before: Any
    origin: Origin | None
    read: bool
    written: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class SeenFunction:
    """One function: what it was made of when it was first seen.

    ``cells``: what it closes over, each with what was in it.
    """

    function: FunctionType
    code: CodeType
    defaults: tuple[Any, ...] | None
    keywords: Table | None
    cells: list[tuple[CellType, Any]]
    origin: Origin | None


@dataclass(eq=False)
class Asked:
    """A value that has to be asked for."""

    ask: Any
    of: tuple[Any, ...]
    then: Any
    origin: Origin | None


@dataclass(eq=False, slots=True)
class Place:
    """A name in a table, and what was there. ``read``: if not, it is a global that is only set."""

    table: Any
    name: Any
    then: Any
    origin: Origin | None
    read: bool = True


@dataclass(eq=False, slots=True)
class Marked:
    """One tensor that somebody has put something on: of which ``names`` are read, in the dictionary ``table``."""

    ref: weakref.ref[torch.Tensor]
    table: Table
    names: set[str] = field(default_factory=set)


@dataclass(eq=False, slots=True)
class Row:
    """Names in one table, what was at each of them, and those at which there was nothing."""

    table: Any
    origin: Origin | None
    names: list[Any] = field(default_factory=list)
    then: list[Any] = field(default_factory=list)
    absent: list[Any] = field(default_factory=list)

    def items(self) -> Iterator[tuple[Any, Any]]:
        """Each name, and what was there: MISSING where nothing was."""
        yield from zip(self.names, self.then, strict=True)
        for name in self.absent:
            yield name, MISSING


def is_table_of(table: Table | None, value: Any) -> bool:
    """Whether this is the dict of a value's attributes, for whichever thread asks; one may be exchanged."""
    return (
        table is not None
        and value is not None
        and not isinstance(value, threading.local)
        and object.__getattribute__(value, "__dict__") is table
    )


def slot(member: MemberDescriptorType | GetSetDescriptorType, seen: Seen) -> Any:
    """What is in a slot of an object, or MISSING; likewise of what C keeps."""
    value = seen.get()
    try:
        return MISSING if value is None else member.__get__(value, type(value))
    except AttributeError:
        return MISSING


def local(name: str, seen: Seen) -> Any:
    """An attribute of a ``threading.local``, as this thread has it."""
    return getattr(seen.get(), name, MISSING)


def content_of(cell: Any) -> Any:
    """What a function closes over: MISSING where that isn't there yet."""
    try:
        return itself(cell.cell_contents)
    except ValueError:
        return MISSING


def item_of(value: Any, kind: Kind, key: Any) -> Any:
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if kind is Kind.MAPPING:
        return value.get(key, MISSING)
    if kind is Kind.SEQUENCE and isinstance(key, int) and -len(value) <= key < len(value):
        return value[key]
    return MISSING


def before(held: Held | None, table: Any, name: Any, then: Any) -> Any:
    """What a dict had by this name: as it was when it was first seen, where that was before somebody put ``then`` into
    it.
    """
    if held is None or held.value is not table or held.kind is not Kind.MAPPING:
        return then
    return dict(zip(*held.before, strict=True)).get(name, MISSING)


def stored(value: Any) -> Any:
    """A mapping with what it holds. A subclass of dict may compute what it gives (transformers' tables of models import
    files, some of which aren't there): that is code, and isn't run for a look.
    """
    cls = type(value)
    if cls is dict or not isinstance(value, dict):
        return value
    base: Any = OrderedDict if isinstance(value, OrderedDict) else dict
    if all(getattr(cls, name) is getattr(base, name) for name in _GIVES):
        return value
    return dict(base.items(value))


def copy_of(value: Any, kind: Kind) -> Any:
    """What is in a container, in order: a list, or a list of keys and one of values."""
    if kind is Kind.MAPPING:
        items = list(stored(value).items())
        return [key for key, _ in items], [item for _, item in items]
    return list(value)
