"""What is read of values that aren't known: when the call is over, of whatever it came across."""

from __future__ import annotations

import abc
import decimal
import sys
import typing
import weakref
from collections.abc import Collection, Iterable, Mapping
from types import FrameType, FunctionType, ModuleType
from typing import Any

import torch

from .all_names import names_of, own_of, slots_of
from .asking import TOLD, autocast
from .carriers import BY_ANY_NAME
from .chains import USED
from .given import FAR, is_given, is_ours, is_read
from .kinds import Kind
from .notes import MISSING, Seen, Table
from .numbered import tensors_of
from .of_c import Emptied, member_of, results_in
from .origin import Origin
from .questions import arrays, decimals, names_of_all, of_tensors, questions_to, registered, subclasses_of_all
from .seen_objects import DESCRIPTIONS
from .seen_values import SeenValues

_OF_CONTAINERS = ("__getitem__", "__iter__", "__len__")
_FIELDS = frozenset({"fields", "__dataclass_fields__"})  #: how code comes by what describes a dataclass
#: What functions of Python's own ask for of the functions and classes that they are given.
_ASKED_BY = {
    "get_type_hints": ("__annotations__",),
    "get_annotations": ("__annotations__",),
    "signature": ("__annotations__", "__wrapped__", "__signature__"),
    "unwrap": ("__wrapped__",),
    "getdoc": ("__doc__",),
}


class LooseReads(SeenValues):
    """What a call read by names of attributes alone, or by names that it computed.

    Attributes:
        told: names of what functions and classes tell of themselves, read of whatever.
        names: in all code that ran.
        in_caches: ids of what functions with a cache had kept before.
        left_by_cached: what such a function runs may leave something elsewhere.
        imports: files that were asked for by a name that only running the code tells.
        tells_apart: code asks which of two tensors one is, as far as is known.
        told_by_id: what asks which object a list or dict of the call's arguments is, in words; and what asks for the
            ``id`` of a tensor, with that.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._told: set[str] = set()
        self._names: set[str] = set()
        self._imports: set[str] = set()
        self.tells_apart = False
        self.told_by_id: list[tuple[str, weakref.ref[torch.Tensor] | None]] = []
        self._loose_names: dict[type, list[str]] = {}
        self.in_caches: dict[int, frozenset[int]] = {}
        self._misses: dict[int, int] = {}  # of functions with a cache: how often they ran
        self.left_by_cached = False

    def _number(self, variables: Mapping[str, Any], names: Collection[str | None]) -> None:
        for name, tensor in tensors_of(variables, names) if names else ():
            self.told_by_id.append((f"id({name})", weakref.ref(tensor)))

    def _cache(self, cached: Any, origin: Origin | None) -> None:
        if id(cached) in self.cached:
            return
        self.cached[id(cached)] = cached
        self._see_results(cached)
        self.in_caches[id(cached)] = frozenset(map(id, results_in(cached)))
        function = cached.__wrapped__
        if not is_given(function.__module__):
            self._misses[id(cached)] = cached.cache_info().misses
            self._ask_it(Emptied(cached), (id(cached), "emptied"), Origin(origin, "cache_clear"))
        self._see(function, USED, origin)
        if isinstance(function, FunctionType) and is_read(function.__code__.co_filename):
            self._planned(function.__code__, function.__globals__)

    def _see_results(self, cached: Any) -> None:
        """Which results a function gives again is the cache's business; what is in one that can be changed is
        whoever's.
        """
        for result in results_in(cached):
            self._see(result, USED, Origin(None, f"what {getattr(cached, '__qualname__', 'a function')} keeps"))

    def kept_anew(self) -> list[tuple[int, str]]:
        """Functions with a cache that keep what the call has made, and may have changed since: their ids and names."""
        found = []
        for key, cached in self.cached.items():
            new = [result for result in results_in(cached) if id(result) not in self.in_caches[key]]
            if any(map(self._may_change, new)):
                found.append((key, str(getattr(cached, "__qualname__", "a function"))))
        return found

    def _is_in_cached(self, frame: FrameType | None) -> bool:
        """Whether a function with a cache of a user's is at work."""
        codes = [self.cached[key].__wrapped__.__code__ for key in self._misses]
        for _ in range(FAR):
            if frame is None or is_ours(frame.f_code.co_filename):
                return False
            if any(frame.f_code is code for code in codes):
                return True
            frame = frame.f_back
        return True

    def filled(self) -> str | None:
        """A function of a user's with a cache that ran in this call, which may have left something elsewhere: another
        call doesn't run it.
        """
        if not self.left_by_cached:
            return None
        names = (
            str(getattr(cached, "__qualname__", "a function"))
            for key, cached in self.cached.items()
            if key in self._misses and cached.cache_info().misses != self._misses[key]
        )
        return next(names, None)

    def _may_change(self, value: Any) -> bool:
        kind = self._kind(value)
        if type(value) in (list, tuple):
            return (type(value) is list and not all(isinstance(item, torch.Tensor) for item in value)) or any(
                map(self._may_change, value)
            )
        return kind in (Kind.OBJECT, Kind.SEQUENCE, Kind.MAPPING, Kind.SET) and type(value) is not frozenset

    def _ask_for_the_rest(self) -> None:
        """What is asked for by code without a name: by operators of numbers, by ``isinstance``, of values that aren't
        known.
        """
        for question in (asked.of[0] for asked in list(self.asked.values()) if asked.of[0] is autocast):
            self.asked[id(question), ""].then = autocast()  # it may be another in a part of the call
        classes = self._classes_seen | {seen.cls for seen in self.seen.values()}
        if decimal.Decimal in self._kinds or decimal.Decimal in classes:
            self._ask(decimals, Origin(None, "decimal's context"))
        self._ask(of_tensors, Origin(None, "what all tensors have"))
        if self.arrays:
            self._ask(arrays, Origin(None, "numpy's settings"))
        if abstract := [cls for cls in self._classes_seen if isinstance(cls, abc.ABCMeta)]:
            self._ask(registered(abstract), Origin(None, "what counts as a subclass of an abstract class"))
            self.loose.update(*map(_attributes_of_protocol, abstract))
        own = [cls for cls in classes if not is_given(cls.__module__)]
        for name in self._names & _ASKED_BY.keys():
            self._told.update(TOLD.intersection(_ASKED_BY[name]))
            self.loose.update(_ASKED_BY[name])
        if names := self._told - {"__subclasses__"}:
            functions = [seen.function for seen in self.functions.values() if not is_given(seen.function.__module__)]
            self._ask(names_of_all([*own, *functions], names), Origin(None, "what a function or a class is called"))
        self._ask_by_method()
        if "__subclasses__" in self._told:
            self._ask(subclasses_of_all(own), Origin(None, "which subclasses there are"))
            for cls in own:
                self._classes_seen.update(self._below_class(cls))

    def _ask_by_method(self) -> None:
        """Of what is in a container, say, and whose methods are called there: which, their names tell."""
        for value, origin in self._by_method:
            cls = type(value)
            if self._kind(value) is Kind.SAME:
                for name, (asks, question) in questions_to(value).items():
                    if name in self.loose:
                        self._ask_it(question, (id(value), asks), origin)
            elif any(hasattr(cls, name) for name in _OF_CONTAINERS) or not self.loose.isdisjoint(dir(cls)):
                self._not_compared(value, origin)

    def _follow_what_is_loose(self) -> None:
        done: set[int] = set()
        anything = self.anything
        while self.refused is None:
            new = [seen for key, seen in self.seen.items() if key not in done]
            done.update(self.seen)
            for cls in self._classes_seen | {seen.cls for seen in new}:
                for owner in (cls, type(cls)):
                    for name in (*self._loose_of(owner), *(own_of(owner) if anything else ())):
                        self._class_attribute(owner, name, Origin(None, owner.__qualname__))
            if self._any_file or self._imports:
                self._read_files(self.loose)
            if anything:
                self.gone_through.update(cls for cls in self._classes_seen if not is_given(cls.__module__))
                self._read_anything(new)
            again = self.anything and not anything
            if again:
                anything = True
                done.clear()
            # what was come by just now counts, too: the items of an object's list, say
            put_on = list(self.carriers.note(self, self.loose, anything))
            if not (again or new or put_on):
                return
            for place in put_on:
                if place.name != BY_ANY_NAME:  # where that runs, what it reads is read of its own code
                    self._below(place.then, USED, None, place.name)
            for seen in new:
                for table in (seen.before, *(before for _, before in seen.parts)):
                    if not self.loose.isdisjoint(table):
                        for name in table.keys() & self.loose:
                            self._below(self._attribute(seen, name), USED, seen.origin, name)
                for name in self.loose if issubclass(seen.cls, torch.jit.ScriptModule) else self._loose_of(seen.cls):
                    self._below(self._attribute(seen, name), USED, seen.origin, name)  # of a slot
                if seen.cls in DESCRIPTIONS and not _FIELDS.isdisjoint(self._names):
                    for name in self.loose.intersection(slots_of(seen.cls)):
                        self._below(self._attribute(seen, name), USED, seen.origin, name)

    def _read_anything(self, objects: list[Seen]) -> None:
        """By computed names attributes were read of values that aren't known: these may be any of those."""
        self._lenient = True
        for seen in objects:
            seen.computed = seen.every = True
            for name in names_of(seen):
                self._below(self._attribute(seen, name), USED, seen.origin, name)
        self._lenient = False

    def _read_files(self, loose: set[str]) -> None:
        """Files were asked for by names that aren't in the code:
        any attribute that is read of whatever may be theirs.
        """
        asked = list(sys.modules) if self._any_file else list(self._imports)
        whole, by_name = self.anything and not self._any_file, not self._any_file
        self._any_file, self._lenient = False, True
        self._imports.clear()
        self.chance |= "random" in asked
        for name in asked:
            module = sys.modules.get(name)
            names = vars(module) if isinstance(module, ModuleType) and not is_given(name) else {}
            attributes = list(names) if whole else names.keys() & loose
            of_others = module is not None and not isinstance(module, ModuleType)  # that somebody keeps there
            if names:
                self.carriers.add(module, Origin(None, name), whole=False)  # it may get what it hasn't
            if attributes or by_name or of_others:
                self._place(sys.modules, name, MISSING if module is None else module, Origin(None, "sys.modules"))
            for attribute in attributes:
                origin = Origin(None, name)
                self._below(self._place(names, attribute, names[attribute], origin), USED, origin, attribute)
            if of_others:
                self._see(module, USED, Origin(None, name))
        self._lenient = False

    def _read_all_of_file(self, names: Table, origin: Origin) -> None:
        """Code asks for all names of its file."""
        if id(names) in self.whole_files:
            return
        self.whole_files[id(names)] = names, frozenset(names), origin
        self._lenient, before = True, self._lenient
        for name in list(names):
            if not name.startswith("__") and names[name] is not self.root():  # which is held weakly
                self._below(self._place(names, name, names[name], origin), USED, origin, name)
        self._lenient = before

    def _loose_of(self, cls: type) -> list[str]:
        """The names that are read of whatever which a class of a user's has."""
        if cls not in self._loose_names:
            owners = (
                []
                if is_given(cls.__module__)
                else [owner for owner in cls.__mro__[:-1] if not is_given(owner.__module__)]
            )
            names = {name for owner in owners for name in vars(owner).keys() & self.loose}
            if issubclass(cls, BaseException):
                names |= {name for name in self.loose if member_of(cls, name) is not None}
            self._loose_names[cls] = list(names)
        return self._loose_names[cls]


def _attributes_of_protocol(cls: type) -> Iterable[str]:
    """By which it is told whether something is of this class, where it is one of ``typing.Protocol``."""
    if not getattr(cls, "_is_protocol", False):
        return ()
    found: Iterable[str] | None = getattr(cls, "__protocol_attrs__", None)  # since Python 3.12
    return typing._get_protocol_attrs(cls) if found is None else found  # type: ignore[attr-defined]
