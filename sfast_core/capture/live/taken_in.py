"""Functions of others that are recorded with the model's own code: which of them, and which run live after all, and
why.

One is recorded so until it turns out that no record can hold what it does, or that what it reads is another from step
to step. What it reads of its own is watched as the model's is, so that a trace holds for another function that reads
the same, and for no other.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Collection, Hashable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch

from ..guards import Lead, followed
from ..guards.leads import Step
from .reach import Reach, kind_of_function, reach_of
from .structure import is_constant
from .surroundings import Path, Surroundings

_CHANGES = 2  # within one sampling, and it runs live
_VALUES, _FEW = 2, 4  # of one option, likewise; of one that has but few
_FIRST, _LONGEST = 128, 8192  # calls for which it does, before it is tried again
_DEEPEST, _LARGEST = 4, 64  # of an option's containers
_PLACES = 1024  # of tensors that functions of a kind read: each is looked at at each call


class TakenInPaths(NamedTuple):
    """What a call's functions are to be.

    Attributes:
        paths: of those that are recorded with the model's code.
        words: the options that their code may look for.
    """

    paths: frozenset[Path] = frozenset()
    words: frozenset[str] = frozenset()


@dataclass(eq=False)
class _Verdict:
    """Why functions of a kind run live, and for how many calls more at least."""

    reason: str
    left: int
    # those for which it was found, held weakly; none: for any
    functions: list[Callable[[], Any]] = field(default_factory=list)


class TakenIn:
    """The functions of others that are recorded with one model's code.

    Attributes:
        there: the functions of the call that runs now, by their places in words: guards look here.
        sampling: counts samplings, where the host says when one begins: what is another in the next one, somebody has
            set.
        why_live: why functions of these kinds run live in the call that was admitted last.
    """

    def __init__(self) -> None:
        self.there: dict[str, Any] = {}
        self.sampling = 0
        self.why_live: dict[Any, str] = {}
        self._verdicts: dict[Any, _Verdict] = {}
        self._times: dict[Any, int] = {}  # how often functions of a kind were let run live
        self._changes: dict[Any, int] = {}
        self._reach: weakref.WeakKeyDictionary[Any, Reach] = weakref.WeakKeyDictionary()
        self._found: dict[Any, frozenset[str]] = {}  # words that were looked for and that the code doesn't tell
        self._values: dict[str, set[str]] = {}
        self._places: dict[Any, dict[tuple[Step, ...], bool]] = {}  # of tensors, by kind: whether they are looked for

    def clear(self) -> None:
        """Let all functions be recorded with the model again."""
        for table in (self._verdicts, self._times, self._changes, self._found, self._values, self._places):
            table.clear()

    def begin_sampling(self) -> None:
        """What was found within the one before says nothing of the next one."""
        self.sampling += 1
        self._changes.clear()
        self._values.clear()

    # -- before a call ----------------------------------------------------------------------------------------------

    def admitted(
        self,
        functions: Mapping[Path, Any],
        options: Mapping[str, Any],
        device: torch.device | None,
        few: Collection[str] = (),
    ) -> TakenInPaths:
        """Which of a call's functions are recorded with the model's code.

        Args:
            functions: all of them.
            options: the call's, in which they are.
            device: that the call runs on.
            few: options that have few values, which come again.
        """
        by_kind: dict[Any, list[Any]] = {}
        kinds = {path: kind_of_function(function) for path, function in functions.items()}
        for path, kind in kinds.items():
            by_kind.setdefault(kind, []).append(functions[path])
        live = {kind for kind, those in by_kind.items() if self._is_live(kind, those)}
        why = self.why_live = {kind: self._verdicts[kind].reason for kind in live}
        others = options.keys() - {path[0] for path in functions}
        read: dict[str, set[Any]] = {}
        reaches = {path: self._reach_of(function) for path, function in functions.items()}
        set_by_others = frozenset().union(*(reach.sets for reach in reaches.values()))
        for path, reach in reaches.items():
            if (kind := kinds[path]) in live:
                continue
            if (reason := reach.refused or _shared(reach, set_by_others)) is not None:
                live.add(kind)
                why[kind] = reason
            for word in (reach.words | self._found.get(kind, frozenset())) & others:
                read.setdefault(word, set()).add(kind)
        for word, kinds_ in read.items():
            if not _is_keyed(options[word], device):
                live |= kinds_
                why.update(dict.fromkeys(kinds_, f"it reads the option {word!r}, which no signature can have"))
            elif not isinstance(options[word], torch.Tensor):
                values = self._values.setdefault(word, set())
                values.add(repr(options[word]))
                if len(values) > (_FEW if word in few else _VALUES):
                    reason = f"the option {word!r} is another from step to step"
                    self.refuse(kinds_, reason)
                    live |= kinds_
                    why.update(dict.fromkeys(kinds_, reason))
        words = frozenset(word for word, kinds_ in read.items() if not kinds_ <= live)
        paths = frozenset(path for path, kind in kinds.items() if kind not in live)
        return TakenInPaths(paths, words)

    def placed(self, functions: Mapping[Path, Any], device: torch.device | None) -> dict[Lead, torch.Tensor]:
        """What is now where functions of these kinds were seen to read tensors that are others from time to time."""
        found = {}
        for path, function in functions.items():
            if places := self._places.get(kind_of_function(function)):
                here = {(place := in_words(path)): function}
                for steps in [steps for steps, looked_for in places.items() if looked_for]:
                    tensor = followed(here, (place, steps))
                    if isinstance(tensor, torch.Tensor) and _is_keyed(tensor, device) and not vars(tensor):
                        found[place, steps] = tensor
        return found

    def moved(self, places: Mapping[Lead, weakref.ref[torch.Tensor]]) -> bool:
        """Look for tensors at these places from now on, where there is another than this one; whether there is any."""
        moved = [lead for lead, tensor in places.items() if followed(self.there, lead) is not tensor()]
        self.look_for(moved)
        return bool(moved)

    def look_for(self, places: Collection[Lead], found: bool = True) -> None:
        """Look for tensors at these places of functions of this call and of others of their kind; ``found``: if not,
        never, since what is there is elsewhere, too.
        """
        for place, steps in places:
            if (function := self.there.get(place)) is not None:
                known = self._places.setdefault(kind_of_function(function), {})
                if len(known) < _PLACES or steps in known:
                    known[steps] = found and known.get(steps, True)

    def _reach_of(self, function: Any) -> Reach:
        try:
            found = self._reach.get(function)
            if found is None:
                found = self._reach[function] = reach_of(function)
            return found
        except TypeError:  # it can't be held weakly, or has no hash
            return reach_of(function)

    def _is_live(self, kind: Any, functions: list[Any]) -> bool:
        verdict = self._verdicts.get(kind)
        if verdict is None:
            return False
        verdict.left -= 1
        same = {id(found) for each in verdict.functions if (found := each()) is not None}
        if verdict.left > 0 or (verdict.functions and any(id(function) in same for function in functions)):
            return True
        del self._verdicts[kind]
        return False

    @contextmanager
    def here(self, around: Surroundings) -> Iterator[None]:
        """Let guards find this call's functions for the length of the context."""
        before = dict(self.there)
        try:
            self.there.clear()
            self.there.update((in_words(path), function) for path, function in around.functions.items())
            yield
        finally:
            self.there.clear()
            self.there.update(before)

    # -- what was found out -----------------------------------------------------------------------------------------

    def refuse(self, kinds: Collection[Any], reason: str, functions: Collection[Any] = ()) -> bool:
        """Let functions of these kinds run live, from the next call on; whether there were any that didn't.

        Args:
            kinds: of them.
            reason: why, in words.
            functions: for which this was found: others of the kind may do otherwise. None: it is all the same for
                which.
        """
        new = [kind for kind in kinds if kind not in self._verdicts]
        for kind in new:
            times = self._times[kind] = self._times.get(kind, 0) + 1
            held = [each for function in functions if kind_of_function(function) == kind for each in _weakly(function)]
            self._verdicts[kind] = _Verdict(reason, min(_FIRST << (times - 1), _LONGEST), held)
            self._changes.pop(kind, None)
        return bool(new)

    def looked_for(self, kind: Any, word: str) -> None:
        """A function of this kind looks for an option that its code doesn't name."""
        self._found[kind] = self._found.get(kind, frozenset()) | {word}

    def changed(self, kinds: Collection[Any], change: str) -> None:
        """Something that functions of these kinds read isn't what it was in a trace that was used in this sampling."""
        for kind in kinds:
            self._changes[kind] = self._changes.get(kind, 0) + 1
            if self._changes[kind] >= _CHANGES:
                self.refuse([kind], f"{change} from step to step")

    def refused(self, around: Surroundings) -> str | None:
        """Why this call isn't traced with those that were admitted before it: something was found against one
        meanwhile.
        """
        if not self._verdicts:
            return None
        kinds = (kind_of_function(around.functions[path]) for path in around.inside_paths)
        return next((self._verdicts[kind].reason for kind in kinds if kind in self._verdicts), None)


def in_words(path: Path) -> str:
    """A path as text, another one for each."""
    return " ".join(step if isinstance(step, str) and step.isidentifier() else repr(step) for step in path)


def functions_in(value: Any, path: Path) -> Iterator[tuple[Path, Any]]:
    """The functions in containers, each with its path."""
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from functions_in(item, (*path, key))
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            yield from functions_in(item, (*path, index))
    elif callable(value) and not isinstance(value, type):
        yield path, value


def _shared(reach: Reach, set_by_others: Collection[int]) -> str | None:
    """Why a function runs live that reads what another of the call's sets, as the two of token merging do."""
    name = next((name for cell, name in reach.closes_over.items() if cell in set_by_others), None)
    return None if name is None else f"another function sets {name}, which it closes over"


def _weakly(function: Any) -> list[Callable[[], Any]]:
    try:
        return [weakref.ref(function)]
    except TypeError:
        return []


def _is_keyed(value: Any, device: torch.device | None, depth: int = 0) -> bool:
    """Whether an option may be part of a signature, at little cost: plain values, tensors where the call runs, few of
    them in containers.
    """
    if isinstance(value, torch.Tensor):
        return (
            type(value) is torch.Tensor
            and value.layout is torch.strided
            and value.device == device
            and value.numel() > 0
            and not value.requires_grad
        )
    if type(value) in (list, tuple, dict):
        items = value.values() if type(value) is dict else value
        return depth < _DEEPEST and len(value) <= _LARGEST and all(_is_keyed(item, device, depth + 1) for item in items)
    return isinstance(value, Hashable) and is_constant(value) and not isinstance(value, type) and not callable(value)
