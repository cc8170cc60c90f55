"""What code reads of objects and of their classes: attributes, wherever they are looked up."""

from __future__ import annotations

import argparse
import dataclasses
import functools
import random
import threading
import types
import weakref
from types import GetSetDescriptorType, MemberDescriptorType
from typing import Any

import torch

from .all_names import own_of, slots_of
from .carriers import Carriers
from .chains import ATTRIBUTE, ITEM, USED, WHOLE, WITHIN, Chain
from .given import is_given, itself
from .kinds import Kind, kind_of
from .notes import COMPUTED, MISSING, Asked, Marked, Seen, Table, Weakly, as_it_was, local, slot
from .of_c import is_of_c, told
from .origin import Origin
from .readers import Readers

ASKED, BOUND = "asked", "bound"
OF_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
OF_ALL = ("_global_forward_hooks", "_global_forward_pre_hooks")  #: hooks of all modules, in PyTorch's file
PARTS = ("_parameters", "_buffers", "_modules")
#: What calling a module looks up by itself.
CALLING = ("forward", "_compiled_call_impl")
#: What PyTorch's own code looks up in its class, which anybody may replace.
_BY_CALLING = ("__call__", "_wrapped_call_impl", "_call_impl", "__getattr__", "__getattribute__")
#: Methods of a module's that go through what is below it.
WALKS = frozenset(
    "children named_children modules named_modules parameters named_parameters buffers named_buffers state_dict"
    " get_submodule get_parameter get_buffer".split()
)
PLAIN = frozenset({Kind.VALUE, Kind.TENSOR})
#: What a module's ``state_dict()`` looks at besides its weights; not the hooks in front of it, of which the weight
#: store has one.
_SAVED = {"_non_persistent_buffers_set": Kind.SET, "_state_dict_hooks": Kind.MAPPING}
#: Classes of Python's whose objects have attributes by the names that users give them.
_OPEN = (types.SimpleNamespace, argparse.Namespace)
#: Of Python's own, of which nobody but the dataclass's decorator reads what isn't named: transformers' configs have 28
#: at each of a model's modules.
DESCRIPTIONS = (dataclasses.Field,)


class SeenObjects:
    """What is read of objects and of classes. What leads on from those is another's to note.

    Args:
        root: the module that is called. It is held weakly.

    Attributes:
        seen, asked, classes: what was read, for the guard.
        put: what classes had where code sets an attribute of theirs that none has read so far.
        lookups: how attributes are found: ASKED, COMPUTED, BOUND or None; and what the class has by the name.
        spaces: what the classes had of which something was seen.
        counted: tables of weights that are gone through, and how many there were.
        hooks: of modules that have some, of all modules and of the root: the table, the name in it, and which there
            were.
        marked: tensors of which what others had put on them is read.
        carriers: functions, files, values and tensors that code comes by and that may have been given attributes.
        readers: who looked first at what is read.
        arrays: NumPy is used.
        chance: Python's random numbers are within reach: C may draw some, of whose calls nobody hears.
    """

    loose: set[str]  # names of attributes that are read of whatever
    # ids of modules that run live, of those below them, and of functions: their own code isn't looked at
    live: frozenset[int] = frozenset()

    def __init__(self, root: torch.nn.Module) -> None:
        self.root = weakref.ref(root)
        self.readers = Readers()
        self.seen: dict[int, Seen] = {}
        self.asked: dict[tuple[int, str], Asked] = {}
        self.classes: dict[tuple[type, str], list[Any]] = {}
        self.put: dict[tuple[type, str], list[Any]] = {}
        self.spaces: dict[type, Table] = {}
        self.counted: dict[int, tuple[Table, int, Origin | None]] = {}
        shared, of_all = vars(torch.nn.modules.module), Origin(None, "all modules")
        self.hooks: list[tuple[Table, str, dict[int, Any], Origin | None]] = [
            (shared, part, dict(shared[part]), of_all) for part in OF_ALL
        ]
        self.marked: dict[int, Marked] = {}
        self.carriers = Carriers()
        self.lookups: dict[tuple[type, str], tuple[Any, Any]] = {}
        self._kinds: dict[type, Kind] = {}
        self.arrays = self.chance = False
        self._class_values: dict[tuple[type, str], Any] = {}
        self._spaced: set[type] = set()
        self._calling: dict[type, Table] = {}  # what is found where modules of a class are called
        self._walked: set[int] = set()

    def _see(self, value: Any, chain: Chain, origin: Origin | None) -> None:
        """Note of ``value`` what ``chain`` says that is read."""
        raise NotImplementedError

    def _below(self, value: Any, chain: Chain, origin: Origin | None, name: Any) -> None:
        """Note of what was found by a name what ``chain`` says that is read."""
        raise NotImplementedError

    def _place(self, table: Any, name: Any, then: Any, origin: Origin | None) -> Any:
        """Note what is at a name, the first time. Returns what was there then."""
        raise NotImplementedError

    def _hold(self, value: Any, kind: Kind, origin: Origin | None, read: bool) -> None:
        """Note what is in a container."""
        raise NotImplementedError

    def _loosen(self, chain: Chain) -> None:
        """What is read below a value that isn't known may be any object's."""
        raise NotImplementedError

    def _kind(self, value: Any) -> Kind:
        cls = type(value)
        kind = self._kinds.get(cls)
        if kind is None:
            kind = kind_of(value)
            self._space(cls)
            self.chance |= issubclass(cls, random.Random)
            if str(cls.__module__).startswith("numpy"):  # an array's depends on its size
                self.arrays = True
            else:
                self._kinds[cls] = kind
        return kind

    def _what_is_come_by(self, module: torch.nn.Module, origin: Origin | None) -> None:
        """Dicts and lists that modules have by the names that are read of whatever: as they are before code that goes
        through the modules changes them.
        """
        for inner in module.modules():
            own = vars(inner)
            names = [
                name for name in own.keys() & self.loose if type(own[name]) in (dict, list) and not name.startswith("_")
            ]
            if names:
                chain = Chain()
                chain.below = {(ATTRIBUTE, name): USED for name in names}
                self._object(inner, Kind.MODULE, chain, origin)

    def _object(self, value: Any, kind: Kind, chain: Chain, origin: Origin | None) -> None:
        seen = self.seen.get(id(value))
        if seen is None or seen.get() is not value:
            seen = self._new(value, kind, origin)
        if chain in seen.chains:
            return
        seen.chains.add(chain)
        found, kinds, origin = seen.found, self._kinds, seen.origin
        for below in chain.attributes:
            name = below.name
            if name in WALKS and kind is Kind.MODULE:
                self._attribute(seen, name)
                self._walk(value, origin, saved=name == "state_dict")
                self._what_is_come_by(value, origin)
            elif below.read or seen.table is None:
                then = found[name] if name in found else self._attribute(seen, name)
                if then is COMPUTED or then is MISSING:
                    self._loosen(below.chain)
                elif below.followed and (below.deep or kinds.get(type(then)) not in PLAIN):
                    self._see(then, below.chain, Origin(origin, name))
            else:
                self._only_stored(seen, name)
        if len(chain.attributes) < len(chain.below):
            for (what, _), item in chain.below.items():
                if what == ITEM:  # what its __getitem__ gives
                    self._loosen(item)
        seen.computed |= chain.every
        given = kind is Kind.OBJECT and is_given(seen.cls.__module__) and seen.cls not in DESCRIPTIONS
        if chain.every or given:
            seen.every = True
            own = vars(value) if issubclass(seen.cls, threading.local) else seen.before
            used = WHOLE if chain.whole and kind is Kind.OBJECT else WITHIN if given and seen.cls not in _OPEN else USED
            for name in (*own, *own_of(seen.cls), *(slots_of(seen.cls) if given else ())):
                then = self._attribute(seen, name)
                # of a property of the same name, whose code isn't read
                if then is COMPUTED and given and name in seen.before:
                    then = self._place(seen.table, name, as_it_was(seen.before[name]), seen.origin)
                self._below(then, used, seen.origin, name)

    def _walk(self, module: torch.nn.Module, origin: Origin | None, saved: bool = False) -> None:
        """All modules, or all weights, below one are gone through: by torch's own code, ``named_modules`` say, which
        runs no code of theirs.

        ``saved``: as they are to be saved, without buffers that aren't, and with what hooks make of it.
        """
        for name in WALKS:  # they call one another
            self._class_attribute(type(module), name, origin)
        if saved:
            for own in map(vars, module.modules()):
                for part in _SAVED.keys() & own.keys():
                    there = self._place(own, part, own[part], origin)
                    self._hold(there, _SAVED[part], Origin(origin, part), read=True)
        inside = [module]
        for inner in inside:
            own = inner.__dict__
            if id(own) in self._walked or isinstance(inner, torch.jit.ScriptModule):  # whose tables are C's
                continue
            self._walked.add(id(own))
            if children := own["_modules"]:
                self._hold(children, Kind.MAPPING, origin, read=True)
                inside += [child for child in children.values() if child is not None]
            if (seen := self.seen.get(id(inner))) is not None and id(inner) not in self.live:
                for part in PARTS:  # ``Sequential`` puts another one there
                    if (seen.cls, part) in self.lookups and part in seen.before:  # thousands are alike in this
                        seen.found.setdefault(part, seen.before[part])
                    else:
                        self._attribute(seen, part)
            for table in (children, own["_parameters"], own["_buffers"]) if id(inner) not in self.live else (children,):
                self.counted.setdefault(id(table), (table, len(table), origin))
                if table is not children:
                    self.carriers.add_tensors(table.values())

    def _new(self, value: Any, kind: Kind, origin: Origin | None) -> Seen:
        try:
            table = object.__getattribute__(value, "__dict__")
        except AttributeError:
            table = None
        if type(table) is not dict:
            table = None
        cls = type(value)
        before = {} if table is None else dict(table)
        if self.live:  # where functions run live, others stand in their places
            keep = self._weakly if id(value) in self.live else itself
            before = {name: keep(found) for name, found in before.items()}
        seen = Seen(kind, cls, origin, table, before)
        self.seen[id(value)] = seen
        self._space(cls)
        try:  # it may have been made in this call, and then it is to go as ever
            seen.ref = weakref.ref(value, functools.partial(_gone, weakref.ref(self), id(value)))
        except TypeError:
            seen.value = value
        if kind is Kind.MODULE and table is not None:
            seen.parts = [(table[part], dict(table[part])) for part in PARTS if isinstance(table.get(part), dict)]
            is_root = value is self.root()
            self.hooks += [
                (table, part, dict(table[part]), origin)
                for part in OF_HOOKS
                if table.get(part) or (is_root and part in table)
            ]
            # how those are called is nobody's business here
            if not is_root and id(value) not in self.live:
                self._called(seen, value)
        return seen

    def _called(self, seen: Seen, module: torch.nn.Module) -> None:
        """What calling a module looks up by itself."""
        usual = self._calling.get(seen.cls)
        if usual is not None and all(
            kept.keys().isdisjoint(CALLING) for kept in (seen.before, *[before for _, before in seen.parts])
        ):
            seen.found.update(usual)  # nearly always it is of the class
            return
        found = {}
        for name in CALLING:
            then = found[name] = self._attribute(seen, name)
            if then is not None and then is not COMPUTED:
                with self.readers.within(module):
                    self._below(then, USED, seen.origin, name)
        for name in _BY_CALLING:
            self._class_attribute(seen.cls, name, seen.origin)
        if all(then is None or then is COMPUTED for then in found.values()):
            self._calling[seen.cls] = found

    def _weakly(self, value: Any) -> Any:
        """An attribute of what runs live, whose code may let go of it."""
        try:
            return Weakly(value) if self._kind(value) is Kind.OBJECT else itself(value)
        except TypeError:
            return value

    def _space(self, cls: type) -> None:
        """Keep what a class has, and its bases, before code may set some of it."""
        if cls not in self._spaced:
            self._spaced.add(cls)
            of_class: type = type(cls)
            for owner in (*cls.__mro__[:-1], *of_class.__mro__[:-2]):
                if owner not in self.spaces and not is_given(owner.__module__):
                    self.spaces[owner] = {name: itself(value) for name, value in vars(owner).items()}

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
        if name in seen.found:
            return seen.found[name]
        found = seen.found[name] = self._look_up(seen, name)
        if seen.kind is not Kind.MODULE and seen.table is not None:
            self.readers.note((id(seen.table), name))
        return found

    def _look_up(self, seen: Seen, name: str) -> Any:
        if name == "__class__":
            return seen.cls
        how = self.lookups.get((seen.cls, name))
        if how is None:
            in_class = self._class_attribute(seen.cls, name, Origin(None, seen.cls.__qualname__))
            how = self.lookups[seen.cls, name] = (
                ASKED if is_of_c(in_class, name) else _how(seen.cls, in_class),
                in_class,
            )
        kind, in_class = how
        if kind is ASKED:
            ask, of = (
                (slot, (in_class, seen))
                if isinstance(in_class, (MemberDescriptorType, GetSetDescriptorType))
                else (local, (name, seen))
            )
            then = ask(*of)
            if is_of_c(in_class, name) and told(in_class, seen.get()) is COMPUTED:
                return COMPUTED
            self.asked.setdefault((id(seen), name), Asked(ask, of, then, Origin(seen.origin, name)))
            return then
        if kind is COMPUTED or seen.table is None:  # what a property reads is in its code
            return in_class if kind is not COMPUTED else COMPUTED
        if name in seen.before:
            return itself(as_it_was(seen.before[name]))
        if in_class is MISSING and seen.parts and PARTS[0] not in seen.found:
            for part in PARTS:  # another table may be put in the place of one
                self._attribute(seen, part)
        for _, before in seen.parts:
            if name in before:
                return itself(before[name])
        if kind is None and issubclass(seen.cls, torch.jit.ScriptModule):  # C keeps what is set on it
            then = local(name, seen)
            if self._kind(then) is Kind.VALUE:
                self.asked.setdefault((id(seen), name), Asked(local, (name, seen), then, Origin(seen.origin, name)))
            return then
        return COMPUTED if kind is BOUND else in_class

    def _class_attribute(self, cls: type, name: str, origin: Origin | None) -> Any:
        """What a class has by a name, itself or from its bases, or MISSING."""
        key = (cls, name)
        if key in self._class_values:
            return self._class_values[key]
        spaces = self.put.pop(key, None) or self._in_spaces(cls, name)
        self.classes[key] = spaces
        self._note_reader((id(cls), name))
        value = self._class_values[key] = next((found for found in spaces if found is not MISSING), MISSING)
        for found in spaces:
            if found is not MISSING and self._kind(found) not in PLAIN:
                self._see(found, USED, Origin(origin, name))
        return value

    def _note_reader(self, key: tuple[int, str]) -> None:
        """Where code of others is looked at: that it reads or sets this."""
        if self.readers.others is not None:
            self.readers.note(key)

    def _in_spaces(self, cls: type, name: str) -> list[Any]:
        """What a class and its bases have by a name, one by one."""
        return [itself(vars(owner).get(name, MISSING)) for owner in cls.__mro__[:-1]]


def _gone(reads: weakref.ref[SeenObjects], key: int, ref: weakref.ref[Any]) -> None:
    """An object of which something is read has gone.

    Nothing is taken out: somebody may be going through what is read just now.
    """
    seen = None if (here := reads()) is None else here.seen.get(key)
    if seen is not None and seen.ref is ref:
        seen.let_go()


def _how(cls: type, in_class: Any) -> Any:
    """How an attribute of an object is found whose class has ``in_class`` by its name."""
    if isinstance(in_class, MemberDescriptorType) or issubclass(cls, threading.local):
        return ASKED
    if in_class is MISSING:
        return None
    if hasattr(type(in_class), "__set__"):
        return COMPUTED
    return BOUND if hasattr(type(in_class), "__get__") else None
