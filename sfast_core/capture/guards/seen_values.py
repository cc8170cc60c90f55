"""What code reads of values: attributes of objects, what is in containers, what functions are made of. Noted as it is before the code runs."""

from __future__ import annotations

import operator
import sys
import threading
import weakref
from types import BuiltinFunctionType, CodeType, FunctionType, MemberDescriptorType, MethodWrapperType, ModuleType
from typing import Any

import torch

from .all_names import NAMED, each_of, own_of
from .bytecode import MUTATORS
from .chains import ANYTHING, ATTRIBUTE, ITEM, USED, Chain
from .code_cache import CodeCache
from .given import is_given, is_of_ours, is_ours, is_read, itself
from .kinds import Kind, answer, carried, kind_of
from .notes import COMPUTED, MISSING, Asked, Held, Place, Seen, SeenFunction, Table, content_of, copy_of, item_of, local, slot
from .origin import Origin

ASKED, BOUND = "asked", "bound"
_PARTS = ("_parameters", "_buffers", "_modules")
#: What calling a module looks up by itself.
CALLING = ("forward", "_compiled_call_impl")
_SPECIAL = "__call__ __getattr__ __getattribute__ __setattr__ __getitem__ __iter__ __len__ __bool__ __contains__ __enter__ __eq__".split()
#: Methods of a module's that go through what is below it.
WALKS = frozenset(
    "children named_children modules named_modules parameters named_parameters buffers named_buffers state_dict get_submodule get_parameter".split()
)
PLAIN = frozenset({Kind.VALUE, Kind.TENSOR})
CONTAINERS = frozenset({Kind.SEQUENCE, Kind.MAPPING, Kind.SET})
_MOST = 200_000  # things in containers


class SeenValues:
    """What is read of values, from those on that :meth:`see` is told of. Nothing is called for it.

    Args:
        codes: what is known of code.
        root: the module that is called. It is held weakly.

    Attributes:
        exact: the ids of objects that were asked for by identity: no other is as good.
        refused: why what was read can't be compared, or None.
        seen, held, asked, places, functions, classes: what was read, for the guard.
        lookups: how attributes are found: ASKED, COMPUTED, BOUND or None; and what the class has by the name.
        spaces: what the classes had of which something was seen.
        cached: functions with a cache of their own.
        live: the ids of modules that run live, and of those below them: their own code isn't looked at.
        counted: tables of weights that are gone through, and how many there were.
        loose: names of attributes that are read of whatever.
        stored: names of attributes that are set.
        anything: attributes are read by names that are computed of values that aren't known.
    """

    live: frozenset[int] = frozenset()

    def __init__(self, codes: CodeCache, root: torch.nn.Module) -> None:
        self.root = weakref.ref(root)
        self.refused: str | None = None
        self.seen: dict[int, Seen] = {}
        self.held: dict[int, Held] = {}
        self.asked: dict[tuple[int, str], Asked] = {}
        self.places: dict[tuple[int, Any], Place] = {}
        self.functions: dict[int, SeenFunction] = {}
        self.classes: dict[tuple[type, str], list[Any]] = {}
        self.spaces: dict[type, Table] = {}
        self.cached: dict[int, Any] = {}
        self.counted: dict[int, tuple[Table, int, Origin | None]] = {}
        self.exact: set[int] = set()
        self.loose: set[str] = set()
        self.stored: set[str] = set()
        self._codes = codes
        self.lookups: dict[tuple[type, str], tuple[Any, Any]] = {}
        self._kinds: dict[type, Kind] = {}
        self._class_values: dict[tuple[type, str], Any] = {}
        self._classes_seen: set[type] = set()
        self._spaced: set[type] = set()
        self._walked: set[int] = set()
        self.anything = self._any_file = self._lenient = False
        self._items = 0

    def refuse(self, reason: str) -> None:
        """Note why what is read can't be compared."""
        if self.refused is None:
            self.refused = reason

    def _planned(self, code: CodeType, names: Table) -> Any:
        """Note what this code reads of the names of its file."""
        raise NotImplementedError

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
        if kind in PLAIN:
            return
        if kind is Kind.OBJECT and is_of_ours(value):
            return
        self.anything |= chain.every_item and kind not in CONTAINERS
        if chain.every and kind in NAMED:
            self._see(value, each_of(value), origin)
        if kind in (Kind.OBJECT, Kind.MODULE):
            self._object(value, kind, chain, origin)
        elif kind in CONTAINERS:
            self._container(value, kind, chain, origin)
        elif kind is Kind.FUNCTION:
            self._function(value, chain, origin)
        elif kind is Kind.BOUND:
            self._see(value.__self__, USED, origin)
            self._see(value.__func__, chain, origin)
        elif kind is Kind.PARTIAL:
            for part in (value.func, value.args, value.keywords):
                self._see(part, USED, origin)
        elif kind is Kind.CACHED:
            self._cache(value, origin)
        elif kind is Kind.CLASS:
            self._classes_seen.add(value)
            self._space(value)
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
                self._see(owner, USED, origin)
            inner = carried(value)
            if inner is not value and inner is not None:
                self._see(inner, USED, origin)
        elif not self._lenient and (kind is Kind.STATEFUL or chain is not USED):
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
        self._see(function, USED, origin)
        if isinstance(function, FunctionType) and is_read(function.__code__.co_filename):
            self._planned(function.__code__, function.__globals__)

    def _loosen(self, chain: Chain) -> None:
        """What is read below a value that isn't known may be any object's."""
        self.anything |= chain.every or chain.every_item
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE:
                self.loose.add(name)
            self._loosen(below)

    def _below(self, value: Any, chain: Chain, origin: Origin | None, name: Any) -> None:
        if value is COMPUTED or value is MISSING:
            self._loosen(chain)
        elif chain.followed and (chain.below or chain.identity or self._kind(value) not in PLAIN):
            self._see(value, chain, Origin(origin, name))

    def _place(self, table: Any, name: Any, then: Any, origin: Origin | None) -> Any:
        """Note what is at a name, the first time. Returns what was there then."""
        place = self.places.get((id(table), name))
        if place is None:
            place = self.places[id(table), name] = Place(table, name, itself(then), origin)
        place.read = True
        return place.then

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
        code = function.__code__
        if id(function) in self.functions or is_ours(code.co_filename):  # ours may lead to the module that is compiled
            return
        defaults, keywords = function.__defaults__, function.__kwdefaults__
        cells = [(cell, content_of(cell)) for cell in function.__closure__ or ()]
        self.functions[id(function)] = SeenFunction(function, code, defaults, keywords and dict(keywords), cells, origin)
        if is_given(function.__module__) and not cells and not is_read(code.co_filename):
            return
        reads = self._codes.of(code)
        for default in (*(defaults or ()), *(keywords or {}).values()):
            self._see(default, USED, origin)
        for name, (_, value) in zip(code.co_freevars, cells, strict=True):
            if value is not MISSING:
                self._below(value, reads.variables[name] if reads.variables[name].followed else USED, origin, name)

    def _container(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        if value is sys.modules:
            self._any_file = True
            self._loosen(chain)
            return
        attributes = any(what == ATTRIBUTE and name not in MUTATORS and name != "get" for what, name in chain.below)
        if chain.content or chain.every or attributes:
            self._hold(value, kind, origin, read=True)
        elif chain.written:
            self._hold(value, kind, origin, read=False)
        if chain.written and id(value) in self.held:
            self.held[id(value)].written |= chain.written
        for (what, key), below in chain.below.items():
            if what != ITEM:
                continue
            item = item_of(value, kind, key)
            if type(value) is dict:
                item = self._place(value, key, item, origin)
            else:
                self._hold(value, kind, origin, read=True)
                if item is MISSING:
                    self._loosen(below)
            self._below(item, below, origin, key)
        if chain.every_item:
            for item in copy_of(value, kind)[1] if kind is Kind.MAPPING else value:
                self._see(item, ANYTHING, origin)
        if attributes and type(value).__dictoffset__ and type(value).__module__ != "builtins":
            self._object(value, Kind.OBJECT, chain, origin)

    def _hold(self, value: Any, kind: Kind, origin: Origin | None, read: bool) -> None:
        known = self.held.get(id(value))
        if known is not None:
            if read and not known.read:
                known.read = True
                self._items_of(known)
            return
        held = self.held[id(value)] = Held(kind, value, copy_of(value, kind), origin, read)
        if read:
            self._items_of(held)

    def _items_of(self, held: Held) -> None:
        keys, values = held.before if held.kind is Kind.MAPPING else (None, held.before)
        self._items += len(values)
        if self._items > _MOST:
            self.refuse(f"{held.origin} holds too much to be compared at each call")
            return
        for index, item in enumerate(values):
            if self._kind(item) not in PLAIN:
                self._see(item, USED, Origin(held.origin, index if keys is None else keys[index]))

    # -- objects ---------------------------------------------------------------------------------------------------------

    def _object(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        seen = self.seen.get(id(value))
        if seen is None or seen.get() is not value:
            seen = self._new(value, kind, origin)
        if chain in seen.chains:
            return
        seen.chains.add(chain)
        for name, below in chain.attributes:
            if name in WALKS and kind is Kind.MODULE:
                self._walk(value, seen.origin)
            elif below.loaded or below.followed or seen.table is None:
                self._below(self._attribute(seen, name), below, seen.origin, name)
            else:
                self._only_stored(seen, name)
        if len(chain.attributes) < len(chain.below):
            for (what, _), below in chain.below.items():
                if what == ITEM:  # what its __getitem__ gives
                    self._loosen(below)
        seen.computed |= chain.every
        if chain.every or (kind is Kind.OBJECT and is_given(seen.cls.__module__)):
            seen.every = True
            for name in (*seen.before, *own_of(seen.cls)):
                self._below(self._attribute(seen, name), USED, seen.origin, name)

    def _walk(self, module: torch.nn.Module, origin: Origin | None) -> None:
        """All modules, or all weights, below one are gone through: by torch's own code, ``named_modules`` say, which runs no code of theirs."""
        inside = [module]
        for inner in inside:
            own = inner.__dict__
            if id(own) in self._walked:
                continue
            self._walked.add(id(own))
            if children := own["_modules"]:
                self._hold(children, Kind.MAPPING, origin, read=True)
                inside += [child for child in children.values() if child is not None]
            for table in (children, own["_parameters"], own["_buffers"]):
                self.counted.setdefault(id(table), (table, len(table), origin))

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
        self._space(cls)
        try:  # it may have been made in this call, and then it is to go as ever
            seen.ref = weakref.ref(value, lambda _, before=seen.before: before.clear())  # type: ignore[misc]
        except TypeError:
            seen.value = value
        if kind is Kind.MODULE and table is not None:
            seen.parts = [(table[part], dict(table[part])) for part in _PARTS if part in table]
            if value is not self.root() and id(value) not in self.live:  # how those are called is nobody's business here
                for name in CALLING:
                    self._below(self._attribute(seen, name), USED, origin, name)
        return seen

    def _space(self, cls: type) -> None:
        """Keep what a class has, and its bases, before code may set some of it."""
        if cls not in self._spaced:
            self._spaced.add(cls)
            for owner in cls.__mro__[:-1]:
                if owner not in self.spaces and not is_given(owner.__module__):
                    self.spaces[owner] = dict(vars(owner))

    def note(self, seen: Seen, name: str) -> None:
        """Have an attribute watched."""
        self._attribute(seen, name)

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
        how = self.lookups.get((seen.cls, name))
        if how is None:
            in_class = self._class_attribute(seen.cls, name, Origin(None, seen.cls.__qualname__))
            how = self.lookups[seen.cls, name] = _how(seen.cls, in_class), in_class
        kind, in_class = how
        if kind is ASKED:
            ask, of = (slot, (in_class, seen)) if isinstance(in_class, MemberDescriptorType) else (local, (name, seen))
            then = ask(*of)
            self.asked.setdefault((id(seen), name), Asked(ask, of, then, Origin(seen.origin, name)))
            return then
        if kind is COMPUTED or seen.table is None:  # what a property reads is in its code
            return in_class if kind is not COMPUTED else COMPUTED
        if name in seen.before:
            return itself(seen.before[name])
        for _, before in seen.parts:
            if name in before:
                return itself(before[name])
        return COMPUTED if kind is BOUND else in_class

    def _class_attribute(self, cls: type, name: str, origin: Origin | None) -> Any:
        """What a class has by a name, itself or from its bases, or MISSING."""
        key = (cls, name)
        if key in self._class_values:
            return self._class_values[key]
        spaces = [itself(vars(owner).get(name, MISSING)) for owner in cls.__mro__[:-1]]
        self.classes[key] = spaces
        value = self._class_values[key] = next((found for found in spaces if found is not MISSING), MISSING)
        if (cls, "__call__") not in self.classes and not is_given(cls.__module__):
            for special in _SPECIAL:
                self._class_attribute(cls, special, origin)
        for found in spaces:
            if found is not MISSING and self._kind(found) not in PLAIN:
                self._see(found, USED, Origin(origin, name))
        return value


def _how(cls: type, in_class: Any) -> Any:
    """How an attribute of an object is found whose class has ``in_class`` by its name."""
    if isinstance(in_class, MemberDescriptorType) or issubclass(cls, threading.local):
        return ASKED
    if in_class is MISSING:
        return None
    if hasattr(type(in_class), "__set__"):
        return COMPUTED
    return BOUND if hasattr(type(in_class), "__get__") else None
