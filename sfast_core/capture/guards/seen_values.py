"""What code reads of values: of objects, of what is in containers, of what functions are made of.

Noted as it is before the code runs.
"""

from __future__ import annotations

import collections
import enum
import gc
import operator
import random
import sys
import weakref
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodWrapperType, ModuleType
from typing import Any

import torch

from ...reporting.reasons.records import NOT_COMPARED, OUTSIDE, TOO_MUCH
from .all_names import NAMED, each_of
from .asking import (
    FOR_THEMSELVES,
    MODES,
    OBJECTS,
    Question,
    asked_by,
    asks_for_itself,
    functions_that_ask,
    of_file,
    setting_of,
)
from .carriers import BY_ANY_NAME, WITHOUT_MORE
from .chains import ANYTHING, ATTRIBUTE, GIVEN, ITEM, MAKES_ITEMS, USED, WHOLE, WITHIN, Chain
from .given import is_given, is_installed, is_of_ours, itself
from .kinds import WEAK, Kind, answer, carried
from .marks import mark
from .notes import COMPUTED, MISSING, Asked, Held, Place, Table, before, copy_of, item_of
from .origin import Origin
from .questions import parts_of, questions_to
from .readers import Reader
from .referred import Referred, refers
from .seen_functions import SeenFunctions
from .seen_objects import PLAIN
from .stack import MUTATORS

_CALLED = frozenset({Kind.SAME, Kind.FUNCTION})
CONTAINERS = frozenset({Kind.SEQUENCE, Kind.MAPPING, Kind.SET})
_MOST = 200_000  # things in containers


class SeenValues(SeenFunctions):
    """What is read of values, from those on that :meth:`_see` is told of. Nothing is called for it.

    Args:
        root: the module that is called.
        collecting: Python's collector is on, but for the recorded call.

    Attributes:
        weakly: what weak references lead to, by its id.
        refused: why what was read can't be compared, or None.
        refused_in: who read that.
        held, places: what was read, for the guard.
        cached: functions with a cache of their own.
        loose: names of attributes that are read of whatever.
        stored: names of attributes that are set.
        anything: attributes are read by names that are computed of values that aren't known.
        whole_files: the names of files of which all is read, which they had, and which file that is.
        asks_for_files: the table of the files that are imported is read, or written to.
        asks_for_modes: code asks whether functions of tensors are watched.
    """

    def __init__(self, root: torch.nn.Module, collecting: bool = False) -> None:
        super().__init__(root)
        self.collecting = collecting
        self.refused: str | None = None
        self.refused_in: Reader | None = None
        self.held: dict[int, Held] = {}
        self.places: dict[tuple[int, Any], Place] = {}
        self.cached: dict[int, Any] = {}
        self.weakly: dict[int, Referred] = {}
        self.whole_files: dict[int, tuple[Table, frozenset[str], Origin | None]] = {}
        self.loose: set[str] = set()
        self.stored: set[str] = set()
        self.anything = self._any_file = self.asks_for_files = self.asks_for_modes = self._lenient = False
        self._whole: set[int] = set()  # containers of which all is read, and of what they lead to
        # what was handed on, and nothing but its methods tells of
        self._by_method: list[tuple[Any, Origin | None]] = []
        self._items = 0
        self._settings: dict[int, Question | None] = {}  # by the ids of functions

    def refuse(self, reason: str) -> None:
        """Note why what is read can't be compared."""
        if self.refused is None:
            self.refused, self.refused_in = reason, self.readers.now()

    def _planned(self, code: CodeType, names: Table) -> Any:
        """Note what this code reads of the names of its file."""
        raise NotImplementedError

    def _see(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        kind = self._kinds.get(type(value))
        if kind is Kind.MODULE and not chain.identity and not chain.every_item:  # as most are
            return self._object(value, kind, chain, origin)
        value = itself(value)
        if chain.identity:
            self.exact.add(id(value))
        kind = self._kind(value)
        if kind is not Kind.OBJECT and kind is not Kind.MODULE:
            if chain.below or chain.every:
                self._given_attributes(value, chain, origin)
            if chain.content and type(value).__dictoffset__:
                self.carriers.add(value, origin)
        if kind in PLAIN:
            return
        if chain.every and kind in NAMED:
            self._see(value, each_of(value), origin)
            self._gone_through(value, kind, origin)
        if kind is not Kind.MODULE and id(value) in self.live:
            return self._live(value, chain, origin)
        if kind in _CALLED and id(value) not in self._settings:
            question = self._settings[id(value)] = setting_of(value)
            if question is not None:
                self._ask(question, origin)
        # to a function of C's: nobody hears of its calls
        if chain.given and not self._lenient and kind is Kind.SAME and id(value) in functions_that_ask():
            self._asked_for(value, self.readers.frame, origin)
        if kind is Kind.OBJECT and is_of_ours(value):
            return
        self.anything |= chain.every_item and kind not in CONTAINERS
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
                self._see(part, GIVEN, origin)
            parts = parts_of((), reference := weakref.ref(value))
            self.asked.setdefault((id(value), "parts"), Asked(parts_of, (parts, reference), parts, origin))
        elif kind is Kind.CACHED:
            if (ATTRIBUTE, "cache_info") in chain.below:
                self.refuse(OUTSIDE(origin=origin, asks="is asked how often it was called"))
            self._cache(value, origin)
        elif kind is Kind.CLASS:
            self._classes_seen.add(value)
            self._space(value)
            if isinstance(value, enum.EnumMeta) and not is_given(value.__module__):
                self._hold(value._member_map_, Kind.MAPPING, origin, read=True)
            for (what, name), below in chain.below.items():
                if what == ATTRIBUTE:
                    self._attribute_of_class(value, name, below, origin)
        elif kind is Kind.FILE:
            self._file(value, chain, origin)
        elif kind is Kind.ASKED:
            then = answer(value)
            self.asked.setdefault((id(value), ""), Asked(answer, (value,), then, origin))
            if isinstance(value, weakref.ref):
                then = value()
                self.weakly.update(refers(value, origin))
            self._see(then, chain, origin)
        elif kind is Kind.SAME:
            if isinstance(value, (operator.attrgetter, operator.methodcaller)):
                self.loose.update(
                    part for name in value.__reduce__()[1] if isinstance(name, str) for part in name.split(".")
                )
            if isinstance(value, enum.Enum):
                for name in ("_name_", "_value_"):
                    self._below(
                        self._place(vars(value), name, vars(value).get(name, MISSING), origin), USED, origin, name
                    )
            owner = getattr(value, "__self__", None)
            for name, (asks, question) in questions_to(value).items():
                if (ATTRIBUTE, name) in chain.below or chain is WITHIN:
                    self._ask_it(question, (id(value), asks), origin)
                self._by_method.append((value, origin))
            if owner is not None and isinstance(value, (BuiltinFunctionType, MethodWrapperType)):
                self._see(owner, USED, origin)
            inner = carried(value)
            if inner is not value and inner is not None:
                self._see(inner, USED, origin)
        elif not self._lenient:
            if kind is Kind.STATEFUL or chain is not USED:
                self._not_compared(value, origin)
            self._by_method.append((value, origin))

    def _gone_through(self, value: Any, kind: Kind, origin: Origin | None) -> None:
        """All attributes of a class, a file or a function: it may get more."""
        if kind is Kind.CLASS:
            self.gone_through.add(value)
        elif kind is Kind.FUNCTION:
            self._hold(vars(value), Kind.MAPPING, origin, read=True)
        elif not is_given(value.__name__):
            names = vars(value)
            self.whole_files.setdefault(id(names), (names, frozenset(names), origin))
            self._place(names, BY_ANY_NAME, names.get(BY_ANY_NAME, MISSING), origin)

    def _not_compared(self, value: Any, origin: Origin | None) -> None:
        self.refuse(NOT_COMPARED(origin=origin, kind=f"{type(value).__module__}.{type(value).__qualname__}"))

    def _asked_for(self, function: Any, frame: FrameType | None, origin: Origin | None) -> None:
        """What a function asks for that is called in this frame, or for it.

        What installed packages look at for themselves steers nobody's result.
        """
        found = asked_by(function)
        path = "" if frame is None else frame.f_code.co_filename
        if found is None or (found in FOR_THEMSELVES and is_installed(path)) or asks_for_itself(function, path):
            return
        if not isinstance(found, str):
            self._ask(found, origin)
            return
        self.refuse(OUTSIDE(origin=origin, asks=found))
        self.asks_for_modes |= found == MODES
        if found == OBJECTS:
            self._leave_alone()

    def _leave_alone(self) -> None:
        """Let go of all that was noted, and let the collector collect: the answer is to be the one that the call gets
        without us.
        """
        notes = (self.seen, self.held, self.places, self.functions, self.cached, self.asked)
        for table in (*notes, self.classes, self.counted, self.marked, self.spaces):
            table.clear()
        self._class_values.clear()
        self.lookups.clear()
        self.carriers.let_go()
        if self.collecting:
            gc.enable()

    def _given_attributes(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """Attributes that somebody has put on a tensor, a number, a list of a class of its own; and what classes have
        that aren't Python's.
        """
        if type(value) not in WITHOUT_MORE:
            self._of_its_class(value, chain, origin)
        table = getattr(value, "__dict__", None) if type(value).__dictoffset__ else None
        if type(table) is not dict or isinstance(value, (type, ModuleType, FunctionType)):
            return
        read = {name: below for (what, name), below in chain.below.items() if what == ATTRIBUTE}
        if chain.every:
            read = dict.fromkeys(table, USED) | read
        for name, below in read.items():
            if name in table or not _is_computed(type(value), name):
                self._below(self._place(table, name, table.get(name, MISSING), origin), below, origin, name)
                if isinstance(value, torch.Tensor):
                    mark(self, value, table).names.add(name)

    def _cache(self, cached: Any, origin: Origin | None) -> None:
        """A function that may answer without running: what its code reads is noted all the same."""
        raise NotImplementedError

    def _loosen(self, chain: Chain) -> None:
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
        if place is None or place.table is not table:  # the one that was there has been let go
            then = before(self.held.get(id(table)), table, name, then)
            place = self.places[id(table), name] = Place(table, name, itself(then), origin)
            self.readers.note((id(table), name))
        place.read = True
        return place.then

    def _set_place(self, table: Any, name: Any, origin: Origin | None) -> None:
        """Note what is at a name that code sets and that this code doesn't read."""
        key = id(table), name
        if (place := self.places.get(key)) is None or place.table is not table:
            self.places[key] = Place(table, name, itself(table.get(name, MISSING)), origin, read=False)

    def _keeps_what_is_set(self, cls: type, name: str) -> bool:
        """Whether what is set by this name on a file of this class, which may be one of its own, is just there then."""
        if cls is ModuleType:
            return True
        absent = self._class_attribute(cls, name, Origin(None, cls.__qualname__)) is MISSING
        return absent and cls.__setattr__ is ModuleType.__setattr__

    def _file(self, module: ModuleType, chain: Chain, origin: Origin | None) -> None:
        if not is_given(module.__name__):
            self.asked.setdefault((id(module), "__class__"), Asked(type, (module,), type(module), origin))
        names = vars(module)
        self.arrays |= module.__name__ == "numpy"
        self.chance |= module is random
        for (what, name), below in chain.below.items():
            if what == ATTRIBUTE and not below.used and self._keeps_what_is_set(type(module), name):
                self._set_place(names, name, origin)
            elif what == ATTRIBUTE:
                then = self._place(names, name, names.get(name, MISSING), origin)
                if then is MISSING:
                    self._place(names, BY_ANY_NAME, names.get(BY_ANY_NAME, MISSING), origin)
                self._below(then, below, origin, name)
                if (question := of_file(module, name)) is not None:
                    self._ask(question, Origin(origin, name))

    def _container(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        if value is sys.modules:
            self._any_file = self.asks_for_files = True
            self._loosen(chain)
            for (what, key), _ in chain.below.items():
                if what == ITEM:
                    self._place(value, key, value.get(key, MISSING), origin)
            return
        # what is in weak ones is held by others
        own, value = value, vars(value)["data"] if isinstance(value, WEAK) else value
        if isinstance(value, collections.defaultdict):  # a copy has it, too
            self._of_its_class(value, MAKES_ITEMS, origin)
        names = {name for what, name in chain.below if what == ATTRIBUTE}
        attributes = not names <= MUTATORS | {"get"}
        written = chain.written | (names & MUTATORS)  # by whoever calls what was looked up: ``add = self.maps.append``
        if chain.content or chain.every or attributes:
            self._hold(value, kind, origin, read=True)
            if chain.whole and id(value) not in self._whole:
                self._whole.add(id(value))
                for item in value.values() if kind is Kind.MAPPING else value:
                    self._see(item, WHOLE, origin)
        elif written:
            self._hold(value, kind, origin, read=False)
        if written and id(value) in self.held:
            self.held[id(value)].written |= written
        for (what, key), below in chain.below.items():
            if what != ITEM:
                self._loosen(below)  # of an item that a named tuple has by this name, say
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
        if attributes and type(own).__dictoffset__ and type(own).__module__ not in ("builtins", "weakref"):
            self._object(own, Kind.OBJECT, chain, origin)

    def _hold(self, value: Any, kind: Kind, origin: Origin | None, read: bool) -> None:
        known = self.held.get(id(value))
        if known is not None:
            if read and not known.read:
                known.read = True
                self._items_of(known)
            return
        held = self.held[id(value)] = Held(kind, value, copy_of(value, kind), origin, read)
        self.readers.note((id(value), None))
        if read:
            self._items_of(held)

    def _items_of(self, held: Held) -> None:
        keys, values = held.before if held.kind is Kind.MAPPING else (None, held.before)
        self._items += len(values)
        if self._items > _MOST:
            self.refuse(TOO_MUCH(origin=held.origin))
            return
        for index, item in enumerate(values):
            if (kind := self._kind(item)) not in PLAIN:
                self._see(item, USED, Origin(held.origin, index if keys is None else keys[index]))
            elif kind is Kind.TENSOR:
                self.carriers.add_tensors((item,))
            elif type(item) not in WITHOUT_MORE and type(item).__dictoffset__:
                self.carriers.add(item, Origin(held.origin, index if keys is None else keys[index]))
        for key in keys or ():
            if type(key) is not str and self._kind(key) not in PLAIN:
                self._see(key, USED, Origin(held.origin, "a key"))


def _is_computed(cls: type, name: str) -> bool:
    """Whether an object of this class tells an attribute by what the class has, whatever its own table has. So do
    tensors, of which nobody replaces a method one by one.
    """
    if issubclass(cls, torch.Tensor):
        return hasattr(cls, name)
    return hasattr(type(next((vars(owner)[name] for owner in cls.__mro__ if name in vars(owner)), None)), "__set__")
