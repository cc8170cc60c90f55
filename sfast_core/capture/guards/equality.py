"""Is what is there now the same, to the code that reads it, as what was there at the trace?"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Collection, Iterable
from types import FunctionType
from typing import Any

from .given import itself
from .kinds import ByValue, ContentNote, Kind, TensorNote, answer, kind_of, same_value, what_a_tensor_is
from .notes import COMPUTED, MISSING, content_of, stored
from .of_c import told
from .read_set import ReadSet

_DEEPEST = 12
_OF_EACH_CLASS = ("__dict__", "__weakref__", "_abc_impl")


def _nobody() -> None:
    """What nothing refers to weakly."""


class Equality:
    """Compares with what a read set has noted: containers with what was in them, objects by what is read of them.

    Args:
        reads: the read set of a call that is over.
        fixed: the ids of what has to stay the very object.
        exact: whether no other tensor or object is as good as one that was there: to whoever finds it later.
        by_item: whether a dict of which only some items are read is as good as another with these.
        by_value: the ids of objects and functions that are looked at even where they are still there.
    """

    def __init__(
        self,
        reads: ReadSet,
        fixed: Collection[int] = (),
        exact: bool = False,
        by_item: bool = False,
        by_value: Collection[int] = (),
    ) -> None:
        self._by_value = frozenset(by_value)
        self._cells = {
            key: [then for _, then in reads.functions[key].cells] for key in by_value & reads.functions.keys()
        }
        self._exact = exact
        self._fixed = frozenset(fixed) | reads.exact
        self._held = {key: held.before for key, held in reads.held.items()}
        self._items: dict[int, dict[Any, Any]] = {}
        for (table, name), place in reads.places.items() if by_item else ():
            if place.read and (table not in reads.held or not reads.held[table].read):
                self._items.setdefault(table, {})[name] = place.then
        self._seen = reads.seen
        self._loose = frozenset(reads.loose)
        self._weakly = {key: referred.ref for key, referred in reads.weakly.items()}
        self._told: dict[int, list[tuple[Any, Any]]] = {}  # by whom: what a class of C's says of it, and what that was
        for (key, _), asked in reads.asked.items():
            if asked.ask is told:
                self._told.setdefault(key, []).append((asked.of[0], asked.then))

    def same(self, now: Any, then: Any, depth: int = 0) -> bool:
        """Whether ``now`` is ``then``, or another object that is as good."""
        now = itself(now)
        if type(then) is ByValue:
            then = then.value
        if now is then and id(then) not in self._by_value:
            return True
        if type(then) is TensorNote:
            return then.fits(now) and self.same_marks(now, then.marks, depth)
        if type(then) is ContentNote:
            return type(now) is then.cls and depth <= _DEEPEST and self._same_noted(now, then, depth + 1)
        if id(then) in self._fixed or type(now) is not type(then) or depth > _DEEPEST:
            return False
        if self._weakly.get(id(then), _nobody)() is then:  # the code would find it here, where it is to be gone
            return False
        kind = kind_of(then)
        try:
            if not self._same_attributes(now, then, kind, depth + 1):
                return False
            for member, answered in self._told.get(id(then), ()):
                if not self.same(told(member, now), answered, depth + 1):
                    return False
            if kind is Kind.VALUE:
                return same_value(now, then)
            if kind is Kind.TENSOR:
                return not self._exact and what_a_tensor_is(now) == what_a_tensor_is(then)
            if kind in (Kind.SEQUENCE, Kind.MAPPING, Kind.SET):
                return self._same_content(now, then, kind, depth + 1)
            if kind is Kind.FUNCTION:
                return self._same_function(now, then, depth + 1)
            if kind is Kind.BOUND:
                parts = (now.__self__, then.__self__), (now.__func__, then.__func__)
                return all(self.same(*part, depth + 1) for part in parts)
            if kind is Kind.PARTIAL:
                of = (now.func, now.args, now.keywords), (then.func, then.args, then.keywords)
                return self.same(*of, depth + 1)
            if isinstance(then, weakref.ref):
                return now() is then() is not None
            if kind is Kind.ASKED:
                return self.same(answer(now), answer(then), depth + 1)
            if kind is Kind.OBJECT:
                return not self._exact and self._same_object(now, then, depth + 1)
        except Exception:  # it can't be compared
            return False
        return False

    def same_class(self, now: type, then: type) -> bool:
        """Whether ``now`` is ``then``, or one that the same code has made anew: of the same name and bases, with the
        same in it.
        """
        if (type(now), now.__module__, now.__qualname__, now.__bases__) != (
            type(then),
            then.__module__,
            then.__qualname__,
            then.__bases__,
        ):
            return False
        mine, theirs = vars(now), vars(then)
        return mine.keys() == theirs.keys() and all(
            self.same(mine[name], value) or self._same_method(mine[name], value, now, then)
            for name, value in theirs.items()
            if name not in _OF_EACH_CLASS
        )

    def _same_method(self, mine: Any, theirs: Any, now: type, then: type) -> bool:
        """Likewise of one that calls ``super()``: it closes over its class."""
        if (
            type(mine) is not FunctionType
            or type(theirs) is not FunctionType
            or mine.__code__ is not theirs.__code__
            or mine.__globals__ is not theirs.__globals__
        ):
            return False
        contents = zip(map(content_of, mine.__closure__ or ()), map(content_of, theirs.__closure__ or ()), strict=True)
        return self.same(
            (mine.__defaults__, mine.__kwdefaults__), (theirs.__defaults__, theirs.__kwdefaults__)
        ) and all((a is now and b is then) or self.same(a, b) for a, b in contents)

    def same_marks(self, now: Any, marks: dict[str, Any], depth: int = 0) -> bool:
        """Whether a tensor has what was read of one in whose place it is."""
        return not marks or all(
            self.same(vars(now).get(name, MISSING), value, depth + 1) for name, value in marks.items()
        )

    def same_items(self, now: Any, before: Any, kind: Kind, depth: int = 0) -> bool:
        """Whether a container has in it what was in it ``before``: a list, keys and values, or a set."""
        if kind is Kind.SET:
            return (not now and not before) or [(type(item), item) for item in now] == [
                (type(item), item) for item in before
            ]
        if kind is Kind.SEQUENCE:
            return len(now) == len(before) and (
                all(map(operator.is_, now, before))
                or all(self.same(a, b, depth) for a, b in zip(now, before, strict=True))
            )
        (keys, values), now = before, stored(now)
        if (
            len(now) == len(keys)
            and all(map(operator.is_, now.keys(), keys))
            and all(map(operator.is_, now.values(), values))
        ):
            return True
        items = list(now.items())
        return len(items) == len(keys) and all(
            self.same(a, key, depth) and self.same(b, value, depth)
            for (a, b), key, value in zip(items, keys, values, strict=True)
        )

    def _same_attributes(self, now: Any, then: Any, kind: Kind, depth: int) -> bool:
        """Whether two values that are compared by what they are have been given the same attributes."""
        if kind is Kind.OBJECT or type(then).__dictoffset__ == 0:
            return True
        mine, theirs = vars(now), vars(then)
        return mine.keys() == theirs.keys() and all(
            self.same(mine[name], value, depth) for name, value in theirs.items()
        )

    def _same_content(self, now: Any, then: Any, kind: Kind, depth: int) -> bool:
        if (read := self._items.get(id(then))) is not None and type(then) is dict:
            return all(self.same(now.get(name, MISSING), value, depth) for name, value in read.items())
        before = self._held.get(id(then))
        if before is None:
            items = list(stored(then).items()) if kind is Kind.MAPPING else []
            before = ([key for key, _ in items], [value for _, value in items]) if kind is Kind.MAPPING else then
        return self.same_items(now, before, kind, depth)

    def _same_noted(self, now: Any, then: ContentNote, depth: int) -> bool:
        items = list(now.items() if then.cls is dict else enumerate(now))
        if then.whole:
            return len(items) == len(then.items) and all(
                self.same(key, known, depth) and self.same(item, value, depth)
                for (key, item), (known, value) in zip(items, then.items, strict=True)
            )
        found = dict(items)
        return all(self.same(found.get(key, MISSING), value, depth) for key, value in then.items)

    def _same_function(self, now: FunctionType, then: FunctionType, depth: int) -> bool:
        return (
            (now.__code__ is then.__code__ or now.__code__ == then.__code__)
            and now.__globals__ is then.__globals__
            and self.same(now.__defaults__, then.__defaults__, depth)
            and self.same(now.__kwdefaults__, then.__kwdefaults__, depth)
            and all(
                map(
                    self.same,
                    map(content_of, now.__closure__ or ()),
                    self._closed_over(then),
                    itertools.repeat(depth),
                )
            )
        )

    def _closed_over(self, function: FunctionType) -> Iterable[Any]:
        noted = self._cells.get(id(function))
        return map(content_of, function.__closure__ or ()) if noted is None else noted

    def _same_object(self, now: Any, then: Any, depth: int) -> bool:
        seen = self._seen.get(id(then))
        # of which nothing is read, that is told by which it is
        if seen is None or seen.get() is not then or not seen.found:
            return now is then
        new = getattr(now, "__dict__", {}).keys() - seen.found.keys()
        if new and (seen.every or not new.isdisjoint(self._loose)):  # read by names that the other had nothing at
            return False
        return all(self.same(_attribute(now, name), value, depth) for name, value in seen.found.items())


def _attribute(value: Any, name: str) -> Any:
    """An attribute as it is kept by an object or its class; nothing is called for it."""
    table = getattr(value, "__dict__", {})
    if name in table:
        return table[name]
    for owner in type(value).__mro__:
        if name in vars(owner):
            member = vars(owner)[name]
            if type(member).__name__ == "member_descriptor":
                return getattr(value, name, MISSING)
            return COMPUTED if hasattr(type(member), "__get__") else member
    return MISSING
