"""The cache of one module on one device: what each signature became, and which of them are kept."""

from __future__ import annotations

import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture import Change, Guard, Lead, Trace
from ..graphed import GraphedProgram
from ..reporting.report import ModuleReport
from ..reporting.signature_report import SignatureReport
from ..runtime.recompile_limit import Tally
from .sampling_history import SamplingHistory

# So many programs of one signature, all for the module's present settings, mean that other people's code takes another
# way from step to step. Three: before, within and after a range of steps.
_WAYS = 3
# Entries per signature: enough for switches that are thrown back and forth, and a bound for a number that is another
# one each time.
_OF_ONE_SIGNATURE = 4


@dataclass(eq=False)
class CacheEntry:
    """What one signature became: a program, or the reason why its calls run as they were.

    Either holds while the guard finds no change.

    Attributes:
        report: the signature's.
        forms: of its tensors: what it has in common with others that differ in plain values alone.
        graphed: the program; None where there is none.
        reason: why there is none.
        guard: compares what the recorded call read besides its arguments.
        sampling: the number of the sampling that used it last, where the host counts them.
        others: the kinds of other people's functions that were recorded with the module's own code.
        handed: each puts a call's options where the recorded call has put its own.
        places: tensors that the program reads where other people's functions keep them, and how those lead there.
        has_callers_own: its result contains lists or dicts of the caller's, to be taken from each call's arguments.
        tally: counts the calls that it serves.
        put_off: other people's code has taken another way than in its program; it isn't tried again before another
            entry of its signature has served a call.
        spare: the trace that the program was made of, where other devices may want a program of it.
        replicas: the other devices' programs, by the device's number.
        wide: the program that computes whole calls on several devices.
    """

    report: SignatureReport
    forms: Hashable
    graphed: GraphedProgram | None = None
    reason: str = ""
    guard: Guard | None = None
    sampling: int = 0
    others: tuple[Any, ...] = ()
    handed: Sequence[Callable[[Any], None]] = ()
    places: Mapping[Lead, weakref.ref[torch.Tensor]] = field(default_factory=dict)
    has_callers_own: bool = False
    tally: Tally = field(default_factory=Tally)
    put_off: bool = False
    spare: Trace | None = None
    replicas: dict[int, GraphedProgram] = field(default_factory=dict)
    wide: GraphedProgram | None = None

    @property
    def watch(self) -> Callable[[], Change | None] | None:
        """Tells whether functions that run live have changed something that the program rests on."""
        return self.guard.by_others.watch() if self.guard is not None and self.guard.by_others else None

    def serves(self, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether the decisions that the forward takes by its inputs' values are those of the recorded call."""
        return self.guard is None or self.guard.decided(inputs)

    def fits(self, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> bool:
        """Whether it :meth:`serves` these inputs and the guard finds no change."""
        return self.guard is None or (self.guard.changed(module) is None and self.guard.decided(inputs))

    def release(self) -> None:
        """Release the graphs, if there are any."""
        for graphed in self.programs():
            graphed.release()

    def programs(self) -> list[GraphedProgram]:
        """All its programs: on the module's own device, on several, and on each of the others."""
        return [*(each for each in (self.graphed, self.wide) if each is not None), *self.replicas.values()]


class CacheEntries:
    """The entries that were used last, by the signature's key, and their lines in the module's report.

    Not thread-safe: its caller holds the device's lock.

    One signature may have several entries, of which one at most fits what the module reads now: whoever switches
    something on and off again finds the first one again, and so does other people's code that takes one of several ways
    (Kohya's Deep Shrink in its first steps and in the others). The setting ``max_signatures`` bounds all entries
    together, and with them the memory that they hold.

    An interruption at any point leaves a usable cache; at worst the report has a line too many until the next change.
    """

    def __init__(self, report: ModuleReport) -> None:
        self._report = report
        self._entries: OrderedDict[Hashable, list[CacheEntry]] = OrderedDict()  # a signature's last used one in front
        self._lines: list[SignatureReport] = []  # those that were put into the report
        self._history = SamplingHistory[CacheEntry]()

    def take(self, key: Hashable, inputs: Sequence[torch.Tensor], sampling: int = 0) -> CacheEntry | None:
        """The entry to try for a call, or None. Its guard is still to be checked.

        Of those that serve these tensors it is the one that served the call at the same place of the last sampling, or
        else the one that was used last. It counts as used by that.

        Args:
            key: of the signature.
            inputs: the call's tensors.
            sampling: the number of the present sampling; 0 where the host doesn't count them.
        """
        if self._history.begins(key, sampling):
            self._take_up(key)
        expected, failed = self._history.expected(key, sampling)
        if key not in self._entries:
            return None
        self._entries.move_to_end(key)
        found = [
            entry for entry in self._entries[key] if not entry.put_off and entry not in failed and entry.serves(inputs)
        ]
        return self._used(key, expected if expected in found else next(iter(found), None))

    def another(self, key: Hashable, module: torch.nn.Module, inputs: Sequence[torch.Tensor]) -> CacheEntry | None:
        """One of the signature's other entries that fits ``module`` and these tensors, or None. It counts as used."""
        self._history.otherwise(key)
        return self._used(
            key, next((each for each in self._entries[key][1:] if not each.put_off and each.fits(module, inputs)), None)
        )

    def _used(self, key: Hashable, found: CacheEntry | None) -> CacheEntry | None:
        if found is not None and found is not self._entries[key][0]:
            self._entries[key].sort(key=lambda entry: entry is not found)
        return found

    def ways(self, key: Hashable, module: torch.nn.Module) -> tuple[Any, ...]:
        """The kinds of other people's functions in this signature's programs, where there are so many programs for the
        module's present settings that those functions must take another way from step to step. Else none.
        """
        found = [
            entry
            for entry in self._entries.get(key, ())
            if entry.others and entry.guard is not None and entry.guard.changed(module) is None
        ]
        return found[0].others if len(found) >= _WAYS else ()

    def served(self, key: Hashable, entry: CacheEntry) -> None:
        """Note that this entry served a call."""
        entry.tally.served += 1
        self._history.served(key, entry)
        self._take_up(key)

    def put_off(self, key: Hashable, entry: CacheEntry) -> None:
        """Note that other people's code went another way than in this entry's program: the next calls try others."""
        entry.put_off = True
        self._history.failed(key, entry)

    def _take_up(self, key: Hashable) -> None:
        for entry in self._entries.get(key, ()):
            entry.put_off = False

    def last(self, forms: Hashable) -> Hashable | None:
        """The key of the signature with these forms that was used last, or None."""
        return next((key for key, (entry, *_) in reversed(self._entries.items()) if entry.forms == forms), None)

    def full(self, at_most: int) -> bool:
        """Whether one more entry would push the oldest out."""
        return len(self._all()) >= at_most

    def add(self, key: Hashable, entry: CacheEntry, at_most: int) -> None:
        """Keep one more entry, and drop the least recently used ones above ``at_most``."""
        self._take_up(key)
        self._history.served(key, entry)
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
        """Forget an entry if it is still kept, and release its graphs."""
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
        """Forget entries unused in the last two samplings that keep other people's tensors or layers alive."""
        for key, entries in list(self._entries.items()):
            for entry in entries:
                if (
                    entry.others
                    and entry.sampling < sampling - 1
                    and (entry.guard is None or entry.guard.keeps_more_than(module))
                ):
                    self.remove(key, entry)

    def let_die(self, module: torch.nn.Module) -> None:
        """Forget entries whose guard finds a change, before the module's own code runs, where a guard may be the last
        holder of an object: that code would otherwise still find it through a weak reference.
        """
        if not any(entry.guard is not None and entry.guard.keeps_alive() for entry in self._all()):
            return
        for key, entries in list(self._entries.items()):
            for entry in entries:
                if entry.guard is not None and entry.guard.changed(module) is not None:
                    self.remove(key, entry)

    def release_evicted(self) -> None:
        """Forget graphs that somebody else has evicted."""
        for graphed in self.programs():
            graphed.release_evicted()

    def release_unreadable(self) -> None:
        """Release the graphs that would read memory which isn't the weights' any more."""
        for graphed in self.programs():
            if graphed.captured and not graphed.readable():
                graphed.release()

    def programs(self) -> list[GraphedProgram]:
        """All programs."""
        return [graphed for entry in self._all() for graphed in entry.programs()]

    def forget_replicas(self) -> None:
        """Forget the programs on other devices, and release their graphs."""
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
        self._history.forget(entry)
        entry.release()

    def _tidy(self) -> None:
        """Remove the report's lines of entries that are gone."""
        kept = {id(entry.report) for entry in self._all()}
        gone = {id(line) for line in self._lines if id(line) not in kept}
        self._report.signatures[:] = [line for line in self._report.signatures if id(line) not in gone]
        self._lines = [line for line in self._lines if id(line) in kept]
