"""Collects, while a call is recorded, what the code that runs reads besides the call's arguments, and what it leaves
behind.

Each Python function that starts is looked at once: its code says which attributes of which variables, which globals and
so on it can read (:mod:`.bytecode`), its variables say of which objects. The values are noted before the function runs.
Nothing is called for this, no property and no ``__getattr__``: what those read is in code of their own.
"""

from __future__ import annotations

import builtins
import functools
import operator
import sys
import weakref
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from types import CodeType, FrameType, MethodType
from typing import Any, NamedTuple

import torch

from ...reporting.reasons.records import OUTSIDE, RANDOM_STATE
from .asking import OBJECTS, OF_CLASSES, TOLD, VARIABLES, Question, answer_to
from .bytecode import reads_of
from .chains import ANYTHING, ITEM, USED, Chain, read_everything, read_whole
from .given import (
    IMPORTING,
    asker,
    is_called_by_read,
    is_functional,
    is_given,
    is_importing,
    is_of_random_state,
    is_standard,
    itself,
    may_ask,
)
from .gone import drop_gone
from .kinds import Kind, carried
from .loose import LooseReads
from .notes import MISSING, Asked, Seen, Table, item_of
from .numbered import HASH, NUMBERING, is_no_tensor
from .origin import Origin
from .readers import code_of, variables_of
from .referred import let_go_of_the_unowned
from .said import Said, says
from .seen_classes import is_looked_up
from .seen_objects import PLAIN, WALKS
from .seen_values import CONTAINERS, WITHOUT_MORE
from .whole import asks_by_name, makes_weak, reads_all

#: What a tensor's operators are called by, which no code names.
_OPERATORS = tuple(
    name
    for each in vars(operator)
    if each.startswith("__")
    for name in (each, f"__r{each[2:]}")
    if callable(getattr(torch.Tensor, name, None))
)
_OF_FRAMES = frozenset({"f_globals", "f_locals", "f_builtins"})
_NOT_LOOSE = frozenset("__init__ __name__ __qualname__ __module__ __doc__ __class__ __dict__ __new__".split())


class _Plan(NamedTuple):
    """What to look at where a function of this code starts: which variables, and whose method it is."""

    roots: tuple[tuple[str, Chain], ...]
    receives: bool
    numbered: frozenset[str | None] = frozenset()  #: whose ids it asks for, without being followed
    leaves: bool = False  #: it may leave something elsewhere


class ReadSet(LooseReads):
    """What one recorded call of ``root`` reads.

    Args:
        root: the module. It is held weakly.
        entry: the function that is called, the forward as it was.
        collecting: Python's collector is on, but for the recorded call.

    Attributes:
        words: strings among the constants of the code that ran.
        others_words: likewise of functions of others that are recorded with the model's code, by their code.
        receivers: the classes whose methods ran.
        given: the ids of the lists and dicts among the call's arguments.
        callers_own: what stands for those in its result, by their ids.
        files: the names in ``sys.modules`` when the call began.
        said: what the call says in passing.
    """

    def __init__(self, root: torch.nn.Module, entry: Any, collecting: bool = False) -> None:
        super().__init__(root, collecting)
        self.receivers: set[tuple[type, int]] = set()
        self.given: set[int] = set()
        self.callers_own: Mapping[int, Any] = {}
        self.files = frozenset(sys.modules)
        self.said = Said()
        self.words: set[str] = set()
        self.others_words: dict[int, set[str]] = {}
        self._late: list[tuple[str, Chain]] = []  # files that code imports which weren't there when it began
        self._plans: dict[int, tuple[CodeType, _Plan]] = {}
        self._see(root, Chain(), None)
        for name in ("forward", "_forward", "__call__"):
            self._class_attribute(type(root), name, Origin(None, type(root).__qualname__))
        self._see(_without(entry, root), USED, Origin(None, "forward"))

    # -- frames -----------------------------------------------------------------------------------------------------

    def started(self, code: CodeType, frame: FrameType) -> None:
        """A function of this code begins to run in this frame. Never raises."""
        if self.refused is not None:
            return
        try:
            known = self._plans.get(id(code))
            if known is not None and known[0] is code:
                plan = known[1]
                if self.others_words and self.readers.others is None:  # the model calls it, too
                    self.words |= self.others_words.pop(id(code), frozenset())
            elif self._is_not_read(code, frame):
                return
            else:
                self.readers.plan(frame)
                plan = self._planned(code, frame.f_globals)
            if not any(plan) or self.refused is not None:
                return
            self.readers.frame = frame
            if plan.leaves and self._misses and not self.left_by_cached:
                self.left_by_cached = self._is_in_cached(frame)
            variables = variables_of(frame)
            if None in plan.numbered:
                self._number(variables, {None})
            if code.co_name == "import_module" and code.co_filename.endswith(IMPORTING):
                self._imports.add(str(variables.get("name")))
            for name, chain in plan.roots:
                self._variable(variables.get(name), chain, name)
            if plan.receives:
                receiver = variables.get(code.co_varnames[0])
                self._receiver(receiver, code)
                if code.co_name == "__init__":
                    self._made(receiver)
        except Exception as error:
            self.refuse(f"what it reads can't be found out: {type(error).__name__}: {error}")
        finally:
            self.readers.done()

    def _is_not_read(self, code: CodeType, frame: FrameType) -> bool:
        """Whether what this code reads steers nothing, or nobody may have it."""
        path, unread = code.co_filename, is_of_random_state(code.co_filename)
        if unread and not may_ask(frame.f_back):
            self.refuse(RANDOM_STATE(name=code.co_name))
        of_dataclass = path == "<string>" and is_given(frame.f_globals.get("__name__"))  # of PyTorch's
        return unread or of_dataclass or is_importing(frame) or (is_standard(path) and not is_called_by_read(frame))

    def asks(self, function: Any, frame: FrameType) -> None:
        """What runs in this frame is about to call a function that asks for something, or says it. Never raises."""
        if says(function):
            self.said.note(function, frame, self.readers)
        elif function is builtins.id and frame.f_code is HASH:
            self.tells_apart = True
        elif function in NUMBERING:
            known = self._plans.get(id(frame.f_code))
            if known is not None and known[0] is frame.f_code and known[1].numbered:
                self._number(variables_of(frame), known[1].numbered)
        elif (caller := asker(frame)) is not None:
            self.readers.frame = caller
            self._asked_for(function, caller, Origin(None, f"{function.__module__}.{function.__qualname__}"))
            self.readers.done()

    def _planned(self, code: CodeType, names: Table) -> _Plan:
        reads, any_file = reads_of(code), self._any_file
        self._any_file = reads.any_file
        if not reads.dynamic and asks_by_name(reads, names):
            read_everything(reads)
        if makes_weak(reads, names):
            self.refuse(OUTSIDE(origin=Origin(None, code.co_name), asks=OBJECTS))
            self._leave_alone()
        elif not _OF_FRAMES.isdisjoint(code.co_names):
            self.refuse(OUTSIDE(origin=Origin(None, code.co_name), asks=VARIABLES))
        if reads_all(reads, names):
            read_whole(reads)
        roots = tuple(
            (name, chain)
            for name, chain in reads.variables.items()
            if chain.below or chain.every or chain.every_item or chain.identity
        )
        plan = _Plan(roots, code.co_argcount > 0, frozenset(reads.numbered), reads.leaves or reads.dynamic)
        if is_functional(code.co_filename):
            plan = _Plan((), False)
        if code.co_filename != "<string>":  # a dataclass asks for its defaults
            self.tells_apart |= not all(any(is_no_tensor(names, one) for one in both) for both in reads.compares)
        self._plans[id(code)] = code, plan
        self.loose |= reads.loose - _NOT_LOOSE
        self._told |= reads.loose & (TOLD | OF_CLASSES)
        if self.readers.others is None:
            self.words |= reads.words
        else:
            self.others_words[id(code)] = reads.words
        self.anything |= reads.anything
        self.stored |= reads.stored | reads.stored_globals
        self._names.update(code.co_names)
        if reads.dynamic:
            self.stored |= reads.words
        origin = Origin(None, str(names.get("__name__")))
        for name, chain in reads.globals.items():
            if chain.used or name in reads.stored_globals:
                self._global(names, name, chain, origin)
        if reads.dynamic:
            for name in reads.words & names.keys():
                self._global(names, name, ANYTHING, origin)
        if "globals" in reads.globals and names.get("globals", globals) is globals:
            self._read_all_of_file(names, origin)
        for (name, level, itself_), chain in reads.imports.items():
            self._imported(names, name, level, itself_, chain)
        if self._any_file:  # before this code may set some of it
            self._read_files(reads.loose)
            any_file = True
        self._any_file = any_file
        return plan

    def _global(self, names: Table, name: str, chain: Chain, origin: Origin) -> None:
        if not chain.used:
            return self._set_place(names, name, origin)
        value = self._place(names, name, names.get(name, MISSING), origin)
        if value is MISSING:
            own = names.get("__builtins__")
            found = own if type(own) is dict else vars(builtins)
            value = self._place(found, name, found.get(name, MISSING), Origin(None, "builtins"))
        self._below(value, chain, origin, name)

    def _imported(self, names: Table, name: str, level: int, itself_: bool, chain: Chain) -> None:
        if level:
            package = str(names.get("__package__") or "").split(".")
            name = ".".join([*package[: len(package) - level + 1], *([name] if name else [])])
        name = name if itself_ or level else name.partition(".")[0]
        if not self._see_file(name, chain):  # it is imported in this call
            self._late.append((name, chain))

    def _see_file(self, name: str, chain: Chain) -> bool:
        """What is read of the file that is imported by this name; whether there is one by now."""
        if name not in sys.modules:
            return False
        self._see(
            self._place(sys.modules, name, sys.modules[name], Origin(None, "sys.modules")), chain, Origin(None, name)
        )
        return True

    def _variable(self, value: Any, chain: Chain, name: str) -> None:
        """A variable of a frame. Containers come from somewhere that is looked at, or were made in this call."""
        kind = self._kind(value)
        if chain.numbered and kind is Kind.TENSOR:
            self.told_by_id.append((f"id({name})", weakref.ref(value)))
        elif chain.identity and id(value) in self.given:
            self.told_by_id.append((f"which {type(value).__name__} {name} is", None))
        # or one that somebody has marked
        if (
            kind is Kind.TENSOR
            and (chain.below or chain.every)
            and (value.__dict__ or (type(value) is not torch.Tensor and isinstance(value, torch.nn.Parameter)))
        ):
            self._given_attributes(value, chain, Origin(None, name))
        if kind in PLAIN or kind in (Kind.STATEFUL, Kind.OPAQUE):
            if kind is Kind.VALUE and chain.below and type(value) not in WITHOUT_MORE:
                self._given_attributes(value, chain, Origin(None, name))
            return
        if kind not in CONTAINERS:
            self._see(value, chain, Origin(None, name))
            return
        self.anything |= chain.every_item
        if chain.attributes and type(value).__dictoffset__ and not is_given(type(value).__module__):
            self._object(value, Kind.OBJECT, _attributes_of(chain), Origin(None, name))
        for (what, key), below in chain.below.items():
            if what == ITEM and below.used:
                item = item_of(value, kind, key)
                if item is not MISSING:
                    self._variable(item, below, f"{name}[{key!r}]")

    def _made(self, value: Any) -> None:
        """An object is being made: what it gets now was nowhere before."""
        seen = self.seen.get(id(value))
        if seen is not None and seen.get() is value and seen.table is not None and not seen.before:
            seen.made = True

    def _receiver(self, value: Any, code: CodeType) -> None:
        """Which class has the method that runs."""
        cls = value if isinstance(value, type) else type(value)
        if (cls, id(code)) in self.receivers:
            return
        self.receivers.add((cls, id(code)))
        if is_given(cls.__module__):
            if issubclass(cls, torch.nn.Module):  # Python looks up ``__iter__``, say, in the class of a list of layers
                self._class_attribute(cls, code.co_name, Origin(None, cls.__qualname__))
            return
        self._ran_for(cls, code)
        if cls is value and not is_given(type(cls).__module__):
            self._ran_for(type(cls), code)

    def _ran_for(self, cls: type, code: CodeType) -> None:
        """A method with this code ran for an object of this class: by which names the class has it."""
        own = [vars(owner) for owner in cls.__mro__[:-1]]
        anyhow = not any(code.co_name in space for space in own)  # put there under another name than its own
        names = [code.co_name]
        for space in own:
            names += [
                name
                for name, value in space.items()
                if (anyhow or (name.startswith("__") and is_looked_up(name))) and code_of(carried(value)) is code
            ]
        for name in dict.fromkeys(names):
            self._class_attribute(cls, name, Origin(None, cls.__qualname__))

    # -- the end ----------------------------------------------------------------------------------------------------

    def finish(self) -> None:
        """The call is over: drop what was made in it, and note what is read of values that aren't known."""
        for file, chain in self._late:
            if not self._see_file(file, chain):  # nor is it there now
                self._place(sys.modules, file, MISSING, Origin(None, "sys.modules"))
        drop_gone(self)
        for cached in list(self.cached.values()):
            self._see_results(cached)
        for seen in self.seen.values():
            if seen.made:  # and kept, in a cache say: from now on it is what it is
                seen.before = dict(seen.table or ())
                seen.found = {name: itself(seen.before.get(name, found)) for name, found in seen.found.items()}
        for place in self.places.values():
            # a file's name that is made when it is asked for
            if place.then is MISSING and "__name__" in place.table and place.name not in self.stored:
                place.then = itself(place.table.get(place.name, MISSING))
        for name in (*filter(functools.partial(hasattr, torch.Tensor), self._names), *_OPERATORS):
            # a tensor's method, which somebody may replace for all tensors
            self._class_attribute(torch.Tensor, name, Origin(None, "Tensor"))
        if (root := self.root()) is not None:
            if not WALKS.isdisjoint(self.loose):
                self._walk(root, None, saved="state_dict" in self.loose)
        self._loosen_what_is_rebound()
        self._ask_for_the_rest()
        self._follow_what_is_loose()
        for reference in let_go_of_the_unowned(self):
            self.refuse(OUTSIDE(origin=reference, asks="refers weakly to what nothing that was read holds"))

    def _loosen_what_is_rebound(self) -> None:
        """What is at a name or a key that the call sets, or is an item of what it fills, may be another wherever it was
        read than where a function began.
        """
        ran = [reads_of(code) for code, _ in self._plans.values()]
        rebound, puts = set().union(*(reads.rebound for reads in ran)), any(reads.puts for reads in ran)
        for reads in ran:
            for (what, name), chains in reads.leading.items():
                if name in rebound or (what == ITEM and puts):
                    for chain in chains:
                        self._loosen(chain)

    def told(self, question: Question, answer: Any, name: str) -> None:
        """A tensor was asked for something of this name. When the call is over."""
        self.asked[id(question), ""] = Asked(answer_to, (question,), answer, Origin(None, f"{name} of a tensor"))

    def run_live(self, modules: Iterable[torch.nn.Module], functions: Iterable[Any] = ()) -> None:
        """Before the call: these modules and functions run live in it.

        What they and what is below them change of their own is theirs.
        """
        self.live = frozenset(id(below) for module in modules for below in module.modules()) | frozenset(
            map(id, functions)
        )

    @contextmanager
    def within_others(self, table: Table, place: str, kind: Any) -> Iterator[None]:
        """A function of others, of this kind, runs as a part of the model: the one that is in ``table`` at ``place``,
        at later calls as well.
        """
        before, self.readers.others = self.readers.others, kind
        try:
            try:
                self._see(self._place(table, place, table.get(place, MISSING), None), USED, Origin(None, place))
            except Exception as error:
                self.refuse(f"what it reads can't be found out: {type(error).__name__}: {error}")
            yield
        finally:
            self.readers.others = before

    def _new(self, value: Any, kind: Kind, origin: Origin | None) -> Seen:
        seen = super()._new(value, kind, origin)
        seen.live = id(value) in self.live
        return seen


@functools.cache
def _attributes_of(chain: Chain) -> Chain:
    """What is read of the attributes of something, not of what is in it."""
    found = Chain(chain.depth)
    found.below = {key: below for key, below in chain.below.items() if key[0] != ITEM}
    return found


def _without(entry: Any, root: torch.nn.Module) -> Any:
    """The function behind a method of the root, which is held weakly."""
    if isinstance(entry, functools.partial) and entry.args and entry.args[0] is root:
        return entry.func
    return entry.__func__ if isinstance(entry, MethodType) and entry.__self__ is root else entry
