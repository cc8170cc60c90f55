"""The signatures of one module on one device: what each became, and which of them are kept."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture import Change, Guard, Lead, Trace
from ..graphed import GraphedProgram
from ..reporting.report import ModuleReport, SignatureReport
from ..runtime.recompile_limit import Tally
from .turns import Turns

_WAYS = 3  # by the step, say: before, within and behind a range of them
_OF_ONE_SIGNATURE = 4  # a switch of a few settings; a number that is another each time leaves no more than these


@dataclass(eq=False)
class CacheEntry:
    """One signature: its program, or without one the ``reason`` why it runs eager.

    Either holds while the ``guard`` finds no change.
    """

    report: SignatureReport
    layout: Hashable
    graphed: GraphedProgram | None = None
    reason: str = ""
    guard: Guard | None = None
    sampling: int = 0  # the last one in which it was used, where the host counts them
    others: tuple[Any, ...] = ()  # the kinds of functions of others that were recorded with the module's code
    # what puts a call's options where the recorded call has put its own
    handed: Sequence[Callable[[Any], None]] = ()
    # where functions of others lead to tensors that the program reads where they were found
    places: Mapping[Lead, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    has_callers_own: bool = False  # its result has places for lists and dicts of each call's arguments
    tally: Tally = field(default_factory=Tally)
    # code of others went another way in it; not to be tried again before a call of its signature is served
    put_off: bool = False
    spare: Trace | None = None  # what the program was made of, where other devices may want theirs,
    replicas: dict[int, GraphedProgram] = field(default_factory=dict)  # which these are, by number
    wide: GraphedProgram | None = None  # computes whole calls on several devices

    @property
    def watch(self) -> Callable[[], Change | None] | None:
        """Says what functions that run live have changed of what the program rests on."""
        return self.guard.by_others.watch() if self.guard is not None and self.guard.by_others else None

    def serves(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether a call with these tensors decides by their values as the recorded one did."""
        return self.guard is None or self.guard.decided(inputs)

    def fits(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
        """Likewise, and what was read is now as it was."""
        return self.guard is None or (self.guard.changed(module) is None and self.guard.decided(inputs))

    def release(self) -> None:
        """Release the graphs, if there are any."""
        for graphed in self.programs():
            graphed.release()

    def programs(self) -> list[GraphedProgram]:
        """Its program, that which has several devices, and those that others have of it."""
        return [*(each for each in (self.graphed, self.wide) if each is not None), *self.replicas.values()]


class CacheEntries:
    """Those used last, by key, with their lines in the module's report.

    Not thread-safe: its caller holds the device's lock.

    A signature may have several, of which one at most fits what the module reads now: who switches something and
    switches it back finds the first one again. So does code of others that goes one of several ways (Kohya's Deep
    Shrink in its first steps and in the others). In all there are as many as the settings allow signatures, and so is
    what they hold.

    Whatever interrupts a change of it leaves it whole: a line too many goes with the next change.
    """

    def __init__(self, report: ModuleReport) -> None:
        self._report = report
        self._entries: OrderedDict[Hashable, list[CacheEntry]] = OrderedDict()  # a signature's last used one in front
        self._lines: list[SignatureReport] = []  # those that were put into the report
        self._turns = Turns[CacheEntry]()

    def take(self, key: Hashable, inputs: Sequence[torch.Tensor], sampling: int = 0) -> CacheEntry | None:
        """The entry of this signature that was used last of those that serve these tensors, which by that is the last
        one of all, or None. In a sampling, that which served the call at this place in the one before.

        It may not fit any more.

        Args:
            key: of the signature.
            inputs: the call's tensors.
            sampling: the number of the sampling that it belongs to; 0 where nobody counts them.
        """
        if self._turns.begins(key, sampling):
            self._take_up(key)
        expected, failed = self._turns.expected(key, sampling)
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        found = [
            entry for entry in self._entries[key] if not entry.put_off and entry not in failed and entry.serves(inputs)
        ]
        return self._used(key, expected if expected in found else next(iter(found), None))

    def another(self, key: Hashable, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> CacheEntry | None:
        """One of this signature's others that fits ``module`` and these tensors, which by that is the one that was used
        last, or None.
        """
        self._turns.otherwise(key)
        return self._used(
            key, next((each for each in self._entries[key][1:] if not each.put_off and each.fits(module, inputs)), None)
        )

    def _used(self, key: Hashable, found: CacheEntry | None) -> CacheEntry | None:
        if found is not None and found is not self._entries[key][0]:
            self._entries[key].sort(key=lambda entry: entry is not found)
        return found

    def ways(self, key: Hashable, module: torch.nn.Module) -> tuple[Any, ...]:
        """The kinds of functions of others in this signature's programs, where there are several that differ by values
        alone; else none.
        """
        found = [
            entry
            for entry in self._entries.get(key, ())
            if entry.others and entry.guard is not None and entry.guard.changed(module) is None
        ]
        return found[0].others if len(found) >= _WAYS else ()

    def served(self, key: Hashable, entry: CacheEntry) -> None:
        """A call has its result from this entry."""
        entry.tally.served += 1
        self._turns.served(key, entry)
        self._take_up(key)

    def put_off(self, key: Hashable, entry: CacheEntry) -> None:
        """Code of others went another way in a call than in this entry's program: the next calls try this signature's
        others, or are traced.
        """
        entry.put_off = True
        self._turns.failed(key, entry)

    def _take_up(self, key: Hashable) -> None:
        for entry in self._entries.get(key, ()):
            entry.put_off = False

    def last(self, layout: Hashable) -> Hashable | None:
        """The key of the one with this layout that was used last, or None."""
        return next((key for key, (entry, *_) in reversed(self._entries.items()) if entry.layout == layout), None)

    def full(self, at_most: int) -> bool:
        """Whether one more would make the oldest go."""
        return len(self._all()) >= at_most

    def add(self, key: Hashable, entry: CacheEntry, at_most: int) -> None:
        """Keep one more, whose program is proved or whose reason is known, and let the oldest go where there would be
        more than ``at_most``.
        """
        self._take_up(key)
        self._turns.served(key, entry)
        self._lines.append(entry.report)
        self._report.signatures.append(entry.report)
        self._entries[key] = [entry, *self._entries.get(key, ())]
        self._entries.move_to_end(key)
        for old in self._entries[key][_OF_ONE_SIGNATURE:]:
            self._drop(key, old)
        while len(self._all()) > at_most:
            oldest = next(iter(self._entries))
            self._drop(oldest, self._entries[oldest][-1])
        self._tidy()

    def remove(self, key: Hashable, entry: CacheEntry) -> None:
        """Forget one of this signature's, where it is still kept, and release its graph."""
        self._drop(key, entry)
        self._tidy()

    def clear(self) -> None:
        """Forget all signatures and release their graphs."""
        self.release()
        self._entries.clear()
        self._tidy()

    def release(self) -> None:
        """Release all graphs."""
        for entry in self._all():
            entry.release()

    def let_go(self, module: torch.nn.Module, sampling: int) -> None:
        """Forget those that hold what functions of others lead to, tensors and layers, and that were used neither in
        this sampling nor in the one before.
        """
        for key, entries in list(self._entries.items()):
            for entry in entries:
                if (
                    entry.others
                    and entry.sampling < sampling - 1
                    and (entry.guard is None or entry.guard.keeps_more_than(module))
                ):
                    self.remove(key, entry)

    def let_die(self, module: torch.nn.Module) -> None:
        """Before the module's code runs: forget those that rest on what is no more, where one of all may be the last to
        hold something to which others refer weakly.
        """
        if not any(entry.guard is not None and entry.guard.keeps_alive() for entry in self._all()):
            return
        for key, entries in list(self._entries.items()):
            for entry in entries:
                if entry.guard is not None and entry.guard.changed(module) is not None:
                    self.remove(key, entry)

    def release_evicted(self) -> None:
        """Let go of the graphs that others have evicted."""
        for graphed in self.programs():
            graphed.release_evicted()

    def release_unreadable(self) -> None:
        """Release the graphs that would read memory of others."""
        for graphed in self.programs():
            if graphed.captured and not graphed.readable():
                graphed.release()

    def programs(self) -> list[GraphedProgram]:
        """The programs that there are."""
        return [graphed for entry in self._all() for graphed in entry.programs()]

    def forget_replicas(self) -> None:
        """Forget the programs that other devices have, and release their graphs."""
        for entry in self._all():
            for graphed in (*entry.replicas.values(), *([] if entry.wide is None else [entry.wide])):
                graphed.release()
            entry.replicas.clear()
            entry.wide = None

    def _all(self) -> list[CacheEntry]:
        return [entry for of_one in list(self._entries.values()) for entry in of_one]

    def _drop(self, key: Hashable, entry: CacheEntry) -> None:
        left = [other for other in self._entries.get(key, ()) if other is not entry]
        if left:
            self._entries[key] = left
        else:
            self._entries.pop(key, None)
        self._turns.forget(entry)
        entry.release()

    def _tidy(self) -> None:
        """Take the lines out of the report whose signatures are gone."""
        kept = {id(entry.report) for entry in self._all()}
        gone = {id(line) for line in self._lines if id(line) not in kept}
        self._report.signatures[:] = [line for line in self._report.signatures if id(line) not in gone]
        self._lines = [line for line in self._lines if id(line) in kept]
