"""What an engine has on one device, and on all of them: what became of each signature there, and when to try again what
went wrong.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack
from typing import Any

import torch

from ..capture import Signature, Surroundings, TakenIn, difference, other_setting
from ..reporting.reason import Reason
from ..reporting.reasons.calls import CHANGES, SETTING_CHANGES, TAKE_TURNS
from ..reporting.report import ModuleReport
from ..runtime.any_store import Store
from ..runtime.backoff import Backoff
from ..runtime.graphs import DeviceGraphs
from ..runtime.recompile_limit import RecompileLimit
from .entries import CacheEntries, CacheEntry


class OnDevice:
    """A module's compiled state on one device. Not thread-safe but for its ``lock``, which whoever uses the rest holds.

    Args:
        device: the device.
        graphs: that device's. None: nothing is captured there.
        report: of the module.

    Attributes:
        lock: that of the device's graphs where it has some, since all of these share memory.
        entries: the signatures.
        backoff: failures that may pass, by signature.
        recompile_limit: traces that served no call.
        change: what made an end of the last trace that had one.
    """

    def __init__(self, device: torch.device, graphs: DeviceGraphs | None, report: ModuleReport) -> None:
        self.device = device
        self.graphs = graphs
        self.entries = CacheEntries(report)
        self.backoff = Backoff()
        self.recompile_limit = RecompileLimit()
        self.change = ""
        self.lock: Any = graphs.lock if graphs is not None else threading.RLock()

    def waiting(self, signature: Signature) -> str | None:
        """Why a call without a trace isn't traced now; None where it is."""
        return self.backoff.reason(signature.key) or self.recompile_limit.reason(signature.layout)

    def against_others(
        self, key: Hashable, module: torch.nn.Module, around: Surroundings, taken_in: TakenIn
    ) -> str | None:
        """Why a call isn't traced with functions of others in it that were admitted before it, or None."""
        kinds = self.entries.ways(key, module)
        if kinds:
            taken_in.refuse(kinds, "it goes another way from step to step")
        return taken_in.refused(around)

    def served(self, key: Hashable, entry: CacheEntry, taken_in: TakenIn) -> None:
        """A call has its result from this entry.

        Functions of others by which it has no graph run live from now on, between segments that have one.
        """
        self.entries.served(key, entry)
        if entry.others:
            entry.sampling = taken_in.sampling
            if (
                entry.graphed is not None
                and entry.graphed.uncapturable
                and taken_in.refuse(entry.others, entry.report.not_captured_because or "")
            ):
                self.forget(key, entry, "a function of others that no graph can hold")

    def leave(self, key: Hashable, entry: CacheEntry, module: torch.nn.Module, change: str) -> None:
        """What was found out about this signature holds no more, because of this change; should that be taken back, it
        holds again.

        Until then it has no graph, and it is forgotten where it would keep what the module has let go. Others are
        looked at when they are called.
        """
        entry.release()
        self.entries.let_die(module)
        if entry.guard is None or entry.guard.keeps_more_than(module):
            self.entries.remove(key, entry)
        self._changed(key, change)

    def forget(self, key: Hashable, entry: CacheEntry, change: str) -> None:
        """What was found out about this signature will never hold again, because of this change."""
        self.entries.remove(key, entry)
        self._changed(key, change)

    def put_off(self, key: Hashable, entry: CacheEntry, change: str) -> None:
        """This entry doesn't do for calls like this one, because of this change; others of its signature may, and it
        may again.
        """
        self.entries.put_off(key, entry)
        self._changed(key, change)

    def _changed(self, key: Hashable, change: str) -> None:
        self.change = change
        self.backoff.succeeded(key)

    def why_again(self, signature: Signature, at_most: int) -> Reason:
        """What is different from the calls that were traced before, should that happen again and again.

        ``at_most``: so many are kept.
        """
        last = self.entries.last(signature.layout)
        if last is not None and last != signature.key:
            if setting := other_setting(signature.key, last):
                return SETTING_CHANGES(setting=setting)
            return CHANGES(change=f"{difference(signature.key, last)} is another")
        return TAKE_TURNS(most=at_most) if self.entries.full(at_most) else CHANGES(change=self.change)

    def let_go(self, module: torch.nn.Module, sampling: int) -> None:
        """Functions of others that nobody uses any more are to go, with what they hold: those that were called neither
        in this sampling nor in the one before.
        """
        self._unless_busy(lambda: self.entries.let_go(module, sampling))

    def try_later(self, key: Hashable, reason: str) -> str:
        """Leave a signature alone for a while. Returns the reason."""
        self.backoff.failed(key, reason)
        return reason

    def make_room(self) -> int:
        """Release all graphs of the device, of whatever module. Returns their bytes."""
        freed = self.graphs.release_all() if self.graphs else 0
        self.entries.release()
        return freed

    def reset(self) -> None:
        """Forget all signatures and release their graphs."""
        self.entries.clear()
        self.backoff.clear()
        self.recompile_limit.clear()

    def release_unreadable(self) -> None:
        """Release the graphs whose weights are gone from this device."""
        self._unless_busy(self.entries.release_unreadable)

    def release_evicted(self) -> None:
        """Let go of graphs that others evicted."""
        self._unless_busy(self.entries.release_evicted)

    def _unless_busy(self, do: Callable[[], None]) -> None:
        """``do()``, if no other thread is inside."""
        if self.lock.acquire(blocking=False):
            try:
                do()
            finally:
                self.lock.release()


class Devices:
    """What an engine has on each device that calls ran on, and how the module's weights lie for all of them.

    Args:
        report: of the module.
        store: of its weights.
        graphs_of: a device's graphs; None where nothing is captured.

    Attributes:
        last: where the last call ran.
    """

    def __init__(
        self, report: ModuleReport, store: Store, graphs_of: Callable[[torch.device], DeviceGraphs | None]
    ) -> None:
        self._report, self._store, self._graphs_of = report, store, graphs_of
        self._each: dict[torch.device, OnDevice] = {}
        self.last: OnDevice | None = None

    def __iter__(self) -> Iterator[OnDevice]:
        return iter(list(self._each.values()))

    def at(self, device: torch.device) -> OnDevice:
        """What there is on this device, which by that is the one of the last call."""
        on = self._each.get(device)
        if on is None:
            on = self._each.setdefault(device, OnDevice(device, self._graphs_of(device), self._report))
        if on is not self.last:
            for other in self:  # the module may have moved: what graphs have elsewhere is of no use before it is back
                if other is not on:
                    other.release_unreadable()
            self.last, self._report.device = on, str(device)
            self._store.lock = on.lock
        return on

    def renew(self) -> None:
        """In a forked child: nothing of the parent's is there."""
        self._each, self.last = {}, None

    def reset(self) -> None:
        """Forget all signatures and release their graphs."""
        for on in self:
            with on.lock:
                on.reset()

    def release_graphs(self) -> None:
        """Release the graphs, and give back what lies beside weights."""
        for on in self:
            with on.lock:
                on.entries.release()
                self._drop_copies()

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and release the graphs that read them otherwise."""
        with ExitStack() as locks:
            for on in sorted(self, key=lambda on: str(on.device)):  # in one order: two threads may do this
                locks.enter_context(on.lock)
                on.entries.release()
            self._lay_out_plainly()

    def restore_unless_used(self) -> None:
        """Where nothing needs the weights laid out anew, eager gives the very bits that it gave before."""
        if not any(on.entries.programs() for on in self):
            self._lay_out_plainly()

    def make_room(self, on: OnDevice) -> int:
        """Give back what a device's graphs hold, and what lies beside weights. Returns the graphs' bytes."""
        self._drop_copies()
        return on.make_room()

    def _drop_copies(self) -> None:
        """Give back what lies beside weights. A later call makes it anew."""
        self._store.copies.drop()
        self._report.copied_bytes = 0

    def _lay_out_plainly(self) -> None:
        self._store.restore()
        self._report.adopted_bytes = self._report.copied_bytes = 0
