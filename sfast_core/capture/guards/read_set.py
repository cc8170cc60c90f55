"""Collects, while a call is recorded, what the code that runs reads besides the call's arguments, and what it leaves behind.

Each Python function that starts is looked at once: its code says which attributes of which variables, which globals and so on it can read
(:mod:`.bytecode`), its variables say of which objects. The values are noted before the function runs. Nothing is called for this, no
property and no ``__getattr__``: what those read is in code of their own.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import threading
import weakref
from dataclasses import dataclass, field
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MemberDescriptorType, MethodType, MethodWrapperType, ModuleType
from typing import Any

import torch

from .bytecode import ATTRIBUTE, ITEM, MUTATORS, Chain, CodeReads, read_everything, reads_of
from .given import is_given, is_ours, is_read, itself
from .kinds import Kind, answer, carried, kind_of
from .origin import Origin

MISSING: Any = type("_Missing", (), {"__repr__": lambda self: "nothing"})()
COMPUTED: Any = type("_Computed", (), {"__repr__": lambda self: "what code makes of it"})()
_ASKED, _BOUND = "asked", "bound"
_USED = Chain()
_USED.content = True
_PARTS = ("_parameters", "_buffers", "_modules")
#: What calling a module looks up by itself.
CALLING = ("forward", "_compiled_call_impl")
_SPECIAL = "__call__ __getattr__ __getattribute__ __setattr__ __getitem__ __iter__ __len__ __bool__ __contains__ __enter__ __eq__".split()
_BY_NAME = (getattr, setattr, hasattr, delattr, vars, eval, exec)
_NOT_LOOSE = frozenset("__init__ __name__ __qualname__ __module__ __doc__ __class__ __dict__ __new__".split())
_IMPORTS = frozenset({"import_module", "__import__"})
_PLAIN = frozenset({Kind.VALUE, Kind.TENSOR})
_CONTAINERS = frozenset({Kind.SEQUENCE, Kind.MAPPING, Kind.SET})
_MOST = 200_000  # things in containers

Table = dict[str, Any]


@dataclass(eq=False, slots=True)
class Seen:
    """One object of which something is read.

    Attributes:
        value: it; None where it is held weakly.
        table: its attributes.
        before: what they were when it was first seen.
        parts: a module's parameters, buffers and children, likewise.
        found: the attributes that are read.
        stored: those that are only set.
        every: whatever attributes there are may be read.
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
    chains: set[int] = field(default_factory=set)
    every: bool = False

    def get(self) -> Any:
        """The object, or None where it is gone."""
        return self.value if self.ref is None else self.ref()


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


@dataclass(eq=False)
class Asked:
    """A value that has to be asked for."""

    ask: Any
    of: tuple[Any, ...]
    then: Any
    origin: Origin | None


@dataclass(eq=False, slots=True)
class Place:
    """A name in a table, and what was there."""

    table: Any
    name: Any
    then: Any
    origin: Origin | None
    owner: Seen | None = None


@dataclass(eq=False)
class _Plan:
    reads: CodeReads
    roots: tuple[tuple[str, Chain], ...]


class CodeCache:
    """What code objects read, by the object: code compares by value, which takes long."""

    def __init__(self) -> None:
        self._reads: dict[int, tuple[CodeType, CodeReads]] = {}

    def of(self, code: CodeType) -> CodeReads:
        """As :func:`reads_of`."""
        entry = self._reads.get(id(code))
        if entry is None or entry[0] is not code:
            entry = self._reads[id(code)] = code, reads_of(code)
        return entry[1]


class ReadSet:
    """What one recorded call of ``root`` reads.

    Args:
        root: the module. It is held weakly.
        entry: the function that is called, the forward as it was.
        codes: what is known of code from other calls.

    Attributes:
        exact: the ids of objects that were asked for by identity: no other is as good.
        refused: why what was read can't be compared, or None.
        seen, held, asked, places, functions, classes: what was read, for the guard.
        words: strings among the constants of the code that ran.
        receivers: the classes whose methods ran.
        anything: attributes by computed names may have been read of values that aren't known.
    """

    def __init__(self, root: torch.nn.Module, entry: Any, codes: CodeCache) -> None:
        self.root = weakref.ref(root)
        self.refused: str | None = None
        self.seen: dict[int, Seen] = {}
        self.held: dict[int, Held] = {}
        self.asked: dict[tuple[int, str], Asked] = {}
        self.places: dict[tuple[int, Any], Place] = {}
        self.functions: dict[int, tuple[FunctionType, CodeType, Any, Any, list[tuple[Any, Any]], Origin | None]] = {}
        self.classes: dict[tuple[type, str], list[Any]] = {}
        self.cached: dict[int, Any] = {}
        self.exact: set[int] = set()
        self.loose: set[str] = set()
        self.stored: set[str] = set()
        self._loose_names: dict[type, list[str]] = {}
        self._lookups: dict[tuple[type, str], tuple[Any, Any]] = {}
        self._kinds: dict[type, Kind] = {}
        self._class_values: dict[tuple[type, str], Any] = {}
        self._codes = codes
        self._plans: dict[int, tuple[CodeType, _Plan]] = {}
        self._classes_seen: set[type] = set()
        self.receivers: set[tuple[type, int]] = set()
        self.words: set[str] = set()
        self.anything = False
        self._any_file = False
        self._items = 0
        self._see(root, Chain(), None)
        for name in ("forward", "_forward", "__call__"):
            self._class_attribute(type(root), name, Origin(None, type(root).__qualname__))
        self._see(_without(entry, root), _USED, Origin(None, "forward"))

    # -- frames ----------------------------------------------------------------------------------------------------------

    def started(self, code: CodeType, frame: FrameType) -> None:
        """A function of this code begins to run in this frame. Never raises."""
        if self.refused is not None:
            return
        try:
            known = self._plans.get(id(code))
            plan = known[1] if known is not None and known[0] is code else self._planned(code, frame.f_globals)
            if not plan.roots and not code.co_argcount:
                return
            variables = frame.f_locals
            for name, chain in plan.roots:
                self._variable(variables.get(name), chain, name)
            if code.co_argcount:
                self._receiver(variables.get(code.co_varnames[0]), code)
        except Exception as error:
            self.refuse(f"what it reads can't be found out: {type(error).__name__}: {error}")

    def refuse(self, reason: str) -> None:
        """Note why what is read can't be compared."""
        if self.refused is None:
            self.refused = reason

    def _planned(self, code: CodeType, names: Table) -> _Plan:
        reads = self._codes.of(code)
        if not reads.dynamic and any(names.get(name) in _BY_NAME for name in reads.globals if isinstance(names.get(name), BuiltinFunctionType)):
            read_everything(reads)
        plan = _Plan(reads, tuple((name, chain) for name, chain in reads.variables.items() if chain.below or chain.every))
        self._plans[id(code)] = code, plan
        self.loose |= reads.loose - _NOT_LOOSE
        self.words |= reads.words
        self.anything |= reads.anything
        self.stored |= reads.stored | reads.stored_globals
        if reads.dynamic:
            self.stored |= reads.words
        origin = Origin(None, str(names.get("__name__")))
        for name, chain in reads.globals.items():
            if chain.used or name in reads.stored_globals:
                self._global(names, name, chain, origin)
        if not _IMPORTS.isdisjoint(code.co_names):
            self._any_file = True
        if reads.dynamic:
            for name in reads.words & names.keys():
                self._global(names, name, _ANYTHING, origin)
        for (name, level, itself_), chain in reads.imports.items():
            self._imported(names, name, level, itself_, chain)
        return plan

    def _global(self, names: Table, name: str, chain: Chain, origin: Origin) -> None:
        value = self._place(names, name, names.get(name, MISSING), origin)
        if value is MISSING:
            value = self._place(vars(builtins), name, vars(builtins).get(name, MISSING), Origin(None, "builtins"))
        self._below(value, chain, origin, name)

    def _imported(self, names: Table, name: str, level: int, itself_: bool, chain: Chain) -> None:
        if level:
            package = str(names.get("__package__") or "").split(".")
            name = ".".join([*package[: len(package) - level + 1], *([name] if name else [])])
        module = sys.modules.get(name if itself_ or level else name.partition(".")[0])
        if module is not None:
            self._see(module, chain, Origin(None, name))

    def _variable(self, value: Any, chain: Chain, name: str) -> None:
        """A variable of a frame. Containers come from somewhere that is looked at, or were made in this call."""
        kind = self._kind(value)
        if kind in _PLAIN or kind in (Kind.STATEFUL, Kind.OPAQUE):
            return
        if kind not in _CONTAINERS:
            self._see(value, chain, Origin(None, name))
            return
        for (what, key), below in chain.below.items():
            if what == ITEM and below.used:
                item = _item(value, kind, key)
                if item is not MISSING:
                    self._variable(item, below, f"{name}[{key!r}]")

    def _receiver(self, value: Any, code: CodeType) -> None:
        """Which class has the method that runs."""
        cls = value if isinstance(value, type) else type(value)
        if (cls, id(code)) in self.receivers:
            return
        self.receivers.add((cls, id(code)))
        if not is_given(cls.__module__):
            self._class_attribute(cls, code.co_name, Origin(None, cls.__qualname__))

    # -- values ----------------------------------------------------------------------------------------------------------

    def _kind(self, value: Any) -> Kind:
        cls = type(value)
        kind = self._kinds.get(cls)
        if kind is None:
            kind = kind_of(value)
            if not str(cls.__module__).startswith("numpy"):  # an array's depends on its size
                self._kinds[cls] = kind
        return kind

    def _see(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """Note of ``value`` what ``chain`` says that is read."""
        value = itself(value)
        if chain.identity:
            self.exact.add(id(value))
        kind = self._kind(value)
        if chain.below and kind is not Kind.OBJECT and kind is not Kind.MODULE:
            self._given_attributes(value, chain, origin)
        if kind in _PLAIN:
            return
        if kind in (Kind.OBJECT, Kind.MODULE):
            self._object(value, kind, chain, origin)
        elif kind in _CONTAINERS:
            self._container(value, kind, chain, origin)
        elif kind is Kind.FUNCTION:
            self._function(value, chain, origin)
        elif kind is Kind.BOUND:
            self._see(value.__self__, _USED, origin)
            self._see(value.__func__, chain, origin)
        elif kind is Kind.PARTIAL:
            for part in (value.func, value.args, value.keywords):
                self._see(part, _USED, origin)
        elif kind is Kind.CACHED:
            self._cache(value, origin)
        elif kind is Kind.CLASS:
            self._classes_seen.add(value)
            for (what, name), below in chain.below.items():
                if what == ATTRIBUTE:
                    self._attribute_of_class(value, name, below, origin)
        elif kind is Kind.FILE:
            self._file(value, chain, origin)
        elif kind is Kind.ASKED:
            then = answer(value)
            self.asked.setdefault((id(value), ""), Asked(answer, (value,), then, origin))
            self._see(value() if isinstance(value, weakref.ref) else then, chain, origin)
        elif kind is Kind.SAME:
            if isinstance(value, (operator.attrgetter, operator.methodcaller)):
                self.loose.update(part for name in value.__reduce__()[1] if isinstance(name, str) for part in name.split("."))
            owner = getattr(value, "__self__", None)
            if owner is not None and isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
                self._see(owner, _USED, origin)
            inner = carried(value)
            if inner is not value and inner is not None:
                self._see(inner, _USED, origin)
        elif kind is Kind.STATEFUL or chain is not _USED:
            self.refuse(f"{origin} is a {type(value).__module__}.{type(value).__qualname__}, whose state can't be compared")

    def _given_attributes(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """Attributes that somebody has put on a tensor, a number, a list of a class of its own."""
        table = getattr(value, "__dict__", None) if type(value).__dictoffset__ else None
        if type(table) is not dict or isinstance(value, (type, ModuleType, FunctionType)):
            return
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE and (name in table or not hasattr(type(value), name)):
                self._below(self._place(table, name, table.get(name, MISSING), origin), below, origin, name)

    def _attribute_of_class(self, cls: type, name: str, below: Chain, origin: Origin | None) -> None:
        value = self._class_attribute(cls, name, origin)
        if value is MISSING and type(cls) is not type:
            value = self._class_attribute(type(cls), name, origin)
        self._below(value, below, origin, name)

    def _cache(self, cached: Any, origin: Origin | None) -> None:
        """A function that may answer without running: what its code reads is noted all the same."""
        if id(cached) in self.cached:
            return
        self.cached[id(cached)] = cached
        function = cached.__wrapped__
        self._see(function, _USED, origin)
        if isinstance(function, FunctionType) and is_read(function.__code__.co_filename):
            self._planned(function.__code__, function.__globals__)

    def _loosen(self, chain: Chain) -> None:
        """What is read below a value that isn't known may be any object's."""
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE:
                self.loose.add(name)
            self._loosen(below)

    def _below(self, value: Any, chain: Chain, origin: Origin | None, name: Any) -> None:
        if value is COMPUTED or value is MISSING:
            self._loosen(chain)
        elif chain.followed:
            self._see(value, chain, Origin(origin, name))

    def _place(self, table: Any, name: Any, then: Any, origin: Origin | None, owner: Seen | None = None) -> Any:
        """Note what is at a name, the first time. Returns what was there then."""
        then = itself(then)
        return self.places.setdefault((id(table), name), Place(table, name, then, origin, owner)).then

    def _file(self, module: ModuleType, chain: Chain, origin: Origin | None) -> None:
        names = vars(module)
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE:
                self._below(self._place(names, name, names.get(name, MISSING), origin), below, origin, name)

    def _function(self, function: FunctionType, chain: Chain, origin: Origin | None) -> None:
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE and name not in vars(FunctionType):
                table = vars(function)
                self._below(self._place(table, name, table.get(name, MISSING), origin), below, origin, name)
        if id(function) in self.functions:
            return
        code = function.__code__
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        cells = [(cell, _content(cell)) for cell in function.__closure__ or ()]
        self.functions[id(function)] = function, code, defaults, keywords and dict(keywords), cells, origin
        if is_ours(code.co_filename) or (is_given(function.__module__) and not cells and not is_read(code.co_filename)):
            return
        reads = self._codes.of(code)
        for default in (*(defaults or ()), *(keywords or {}).values()):
            self._see(default, _USED, origin)
        for name, (_, value) in zip(code.co_freevars, cells, strict=True):
            if value is not MISSING:
                self._below(value, reads.variables[name] if reads.variables[name].followed else _USED, origin, name)

    def _container(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        if value is sys.modules:
            self._any_file = True
            self._loosen(chain)
            return
        attributes = any(what == ATTRIBUTE and name not in MUTATORS for what, name in chain.below)
        if chain.content or chain.every or attributes:
            self._hold(value, kind, origin, read=True)
        elif chain.written:
            self._hold(value, kind, origin, read=False)
        if chain.written and id(value) in self.held:
            self.held[id(value)].written |= chain.written
        for (what, key), below in chain.below.items():
            if what != ITEM:
                continue
            item = _item(value, kind, key)
            if type(value) is dict:
                item = self._place(value, key, item, origin)
            else:
                self._hold(value, kind, origin, read=True)
                if item is MISSING:
                    self._loosen(below)
            self._below(item, below, origin, key)
        if attributes and type(value).__dictoffset__ and type(value).__module__ != "builtins":
            self._object(value, Kind.OBJECT, chain, origin)

    def _hold(self, value: Any, kind: Kind, origin: Origin | None, read: bool) -> None:
        known = self.held.get(id(value))
        if known is not None:
            if read and not known.read:
                known.read = True
                self._items_of(known)
            return
        held = self.held[id(value)] = Held(kind, value, _copy(value, kind), origin, read)
        if read:
            self._items_of(held)

    def _items_of(self, held: Held) -> None:
        keys, values = held.before if held.kind is Kind.MAPPING else (None, held.before)
        self._items += len(values)
        if self._items > _MOST:
            self.refuse(f"{held.origin} holds too much to be compared at each call")
            return
        for index, item in enumerate(values):
            if self._kind(item) not in _PLAIN:
                self._see(item, _USED, Origin(held.origin, index if keys is None else keys[index]))

    # -- objects ---------------------------------------------------------------------------------------------------------

    def _object(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        seen = self.seen.get(id(value))
        if seen is None or seen.get() is not value:
            seen = self._new(value, kind, origin)
        if id(chain) in seen.chains:
            return
        seen.chains.add(id(chain))
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE and (below.used or seen.table is None):
                self._below(self._attribute(seen, name), below, seen.origin, name)
            elif what == ATTRIBUTE:
                self._only_stored(seen, name)
            else:  # what its __getitem__ gives
                self._loosen(below)
        if chain.every or (kind is Kind.OBJECT and is_given(seen.cls.__module__)):
            seen.every = True
            for name in seen.before:
                self._below(self._attribute(seen, name), _USED, seen.origin, name)

    def _new(self, value: Any, kind: Kind, origin: Origin | None) -> Seen:
        try:
            table = object.__getattribute__(value, "__dict__")
        except AttributeError:
            table = None
        if type(table) is not dict:
            table = None
        cls = type(value)
        seen = Seen(kind, cls, origin, table, {} if table is None else dict(table))
        self.seen[id(value)] = seen
        try:  # it may have been made in this call, and then it is to go as ever
            seen.ref = weakref.ref(value, lambda _, before=seen.before: before.clear())  # type: ignore[misc]
        except TypeError:
            seen.value = value
        if kind is Kind.MODULE and table is not None:
            seen.parts = [(table[part], dict(table[part])) for part in _PARTS if part in table]
            for name in CALLING:
                self._attribute(seen, name)
        return seen

    def _only_stored(self, seen: Seen, name: str) -> None:
        """An attribute that code sets and that this code doesn't read."""
        member = self._class_attribute(seen.cls, name, Origin(None, seen.cls.__qualname__))
        if isinstance(member, MemberDescriptorType):
            self._attribute(seen, name)
        else:
            seen.stored.add(name)

    def _attribute(self, seen: Seen, name: str) -> Any:
        """What an attribute of an object was, or MISSING; noted where it is looked up."""
        found = seen.found.get(name, seen)
        if found is seen:
            found = seen.found[name] = self._look_up(seen, name)
        return found

    def _look_up(self, seen: Seen, name: str) -> Any:
        if name == "__class__":
            return seen.cls
        how = self._lookups.get((seen.cls, name))
        if how is None:
            in_class = self._class_attribute(seen.cls, name, Origin(None, seen.cls.__qualname__))
            how = self._lookups[seen.cls, name] = _how(seen.cls, in_class), in_class
        kind, in_class = how
        if kind is _ASKED:
            ask, of = (slot, (in_class, seen)) if isinstance(in_class, MemberDescriptorType) else (local, (name, seen))
            then = ask(*of)
            self.asked.setdefault((id(seen), name), Asked(ask, of, then, Origin(seen.origin, name)))
            return then
        if kind is COMPUTED or seen.table is None:  # what a property reads is in its code
            return in_class if kind is not COMPUTED else COMPUTED
        if name in seen.before:
            return self._place(seen.table, name, seen.before[name], seen.origin, seen)
        for table, before in seen.parts:
            if name in before:
                return self._place(table, name, before[name], seen.origin, seen)
        self._place(seen.table, name, MISSING, seen.origin, seen)
        if in_class is MISSING:
            for part, _ in seen.parts:
                self._place(part, name, MISSING, seen.origin, seen)
        return COMPUTED if kind is _BOUND else in_class

    def _class_attribute(self, cls: type, name: str, origin: Origin | None) -> Any:
        """What a class has by a name, itself or from its bases, or MISSING."""
        key = (cls, name)
        if key in self._class_values:
            return self._class_values[key]
        spaces = [vars(owner).get(name, MISSING) for owner in cls.__mro__[:-1]]
        self.classes[key] = spaces
        value = self._class_values[key] = next((found for found in spaces if found is not MISSING), MISSING)
        if (cls, "__call__") not in self.classes and not is_given(cls.__module__):
            for special in _SPECIAL:
                self._class_attribute(cls, special, origin)
        for found in spaces:
            if found is not MISSING and self._kind(found) not in _PLAIN:
                self._see(found, _USED, Origin(origin, name))
        return value

    # -- the end ---------------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The call is over: drop what was made in it, and note what is read of values that aren't known."""
        self._drop_gone()
        for place in self.places.values():
            if place.then is MISSING and place.owner is None and place.name not in self.stored:  # a file's name that is made when it is asked for
                place.then = itself(place.table.get(place.name, MISSING))
        done: set[int] = set()
        while self.refused is None:
            new = [seen for key, seen in self.seen.items() if key not in done]
            done.update(self.seen)
            for cls in self._classes_seen | {seen.cls for seen in new}:
                for owner in (cls, type(cls)):
                    for name in self._loose_of(owner):
                        self._class_attribute(owner, name, Origin(None, owner.__qualname__))
            if self._any_file:
                self._read_files()
            if not new:
                return
            for seen in new:
                tables = (seen.before, *(before for _, before in seen.parts))
                for name in [name for table in tables for name in table.keys() & self.loose]:
                    self._below(self._attribute(seen, name), _USED, seen.origin, name)
                for name in self._loose_of(seen.cls):
                    self._attribute(seen, name)

    def _read_files(self) -> None:
        """Some file was asked for by a name that isn't known."""
        self._any_file = False
        for name, module in list(sys.modules.items()):
            if isinstance(module, ModuleType) and not is_given(name):
                origin, names = Origin(None, name), vars(module)
                for attribute in names.keys() & self.loose:
                    self._below(self._place(names, attribute, names[attribute], origin), _USED, origin, attribute)

    def _loose_of(self, cls: type) -> list[str]:
        """The names that are read of whatever which a class of a user's has."""
        if cls not in self._loose_names:
            owners = [] if is_given(cls.__module__) else [owner for owner in cls.__mro__[:-1] if not is_given(owner.__module__)]
            self._loose_names[cls] = list({name for owner in owners for name in vars(owner).keys() & self.loose})
        return self._loose_names[cls]

    def _drop_gone(self) -> None:
        """Objects that were made in this call, and are gone: only this set knows them."""
        self.seen = {key: seen for key, seen in self.seen.items() if not _is_gone(seen)}
        there = set(map(id, self.seen.values()))  # without those in whose memory a later object was made
        self.places = {key: place for key, place in self.places.items() if place.owner is None or id(place.owner) in there}
        self.asked = {key: asked for key, asked in self.asked.items() if not isinstance(asked.of[-1], Seen) or id(asked.of[-1]) in there}
        alive = len(self.held) + 1
        while len(self.held) < alive:  # one that is gone held others
            alive = len(self.held)
            for key in [key for key, held in self.held.items() if sys.getrefcount(held.value) <= 2]:
                del self.held[key]

_ANYTHING = Chain()
_ANYTHING.content = _ANYTHING.every = True


def _without(entry: Any, root: torch.nn.Module) -> Any:
    """The function behind a method of the root, which is held weakly."""
    if isinstance(entry, functools.partial) and entry.args and entry.args[0] is root:
        return entry.func
    return entry.__func__ if isinstance(entry, MethodType) and entry.__self__ is root else entry


def _how(cls: type, in_class: Any) -> Any:
    """How an attribute of an object is found whose class has ``in_class`` by its name."""
    if isinstance(in_class, MemberDescriptorType) or issubclass(cls, threading.local):
        return _ASKED
    if in_class is MISSING:
        return None
    if hasattr(type(in_class), "__set__"):
        return COMPUTED
    return _BOUND if hasattr(type(in_class), "__get__") else None


def slot(member: MemberDescriptorType, seen: Seen) -> Any:
    """What is in a slot of an object, or MISSING."""
    value = seen.get()
    try:
        return MISSING if value is None else member.__get__(value, type(value))
    except AttributeError:
        return MISSING


def local(name: str, seen: Seen) -> Any:
    """An attribute of a ``threading.local``, as this thread has it."""
    return getattr(seen.get(), name, MISSING)


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:
        return MISSING


def _item(value: Any, kind: Kind, key: Any) -> Any:
    if isinstance(value, dict):
        return dict.get(value, key, MISSING)
    if kind is Kind.MAPPING:
        return value.get(key, MISSING)
    if kind is Kind.SEQUENCE and isinstance(key, int) and -len(value) <= key < len(value):
        return value[key]
    return MISSING


def _copy(value: Any, kind: Kind) -> Any:
    """What is in a container: a list, a list of keys and one of values, a set."""
    if kind is Kind.MAPPING:
        items = list(value.items())
        return [key for key, _ in items], [item for _, item in items]
    return list(value) if kind is Kind.SEQUENCE else set(value)


def _is_gone(seen: Seen) -> bool:
    if seen.ref is not None:
        return seen.ref() is None
    # No weak reference to it can be had: it is known here, in the call of getrefcount, and nowhere else.
    return seen.kind is Kind.OBJECT and sys.getrefcount(seen.value) <= 2
