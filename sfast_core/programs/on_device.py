"""What an engine keeps on each device: the signatures' entries there, and when to try again what went wrong."""

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
    """A module's compiled state on one device. Not thread-safe: its user holds its ``lock``.

    Args:
        device: the device.
        graphs: the device's graphs. None: nothing is captured there.
        report: the module's.

    Attributes:
        lock: the lock of the device's graphs where it has them, since all graphs of a device share memory.
        entries: what each signature became.
        backoff: temporary failures by signature, which are tried again later.
        recompile_limit: counts traces that served no call.
        change: the change that ended a trace last.
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
        """Why a call of a signature without an entry is not traced for now, or None."""
        return self.backoff.reason(signature.key) or self.recompile_limit.reason(signature.forms)

    def against_others(
        self, key: Hashable, module: torch.nn.Module, around: Surroundings, taken_in: TakenIn
    ) -> str | None:
        """Why a call can't be traced together with other people's functions, or None. Functions that take another way
        from step to step are refused by that from now on.
        """
        kinds = self.entries.ways(key, module)
        if kinds:
            taken_in.refuse(kinds, "it goes another way from step to step")
        return taken_in.refused(around)

    def served(self, key: Hashable, entry: CacheEntry, taken_in: TakenIn) -> None:
        """Note that this entry served a call.

        Where other people's functions in its program are why it can't be captured, the entry is dropped: they run live
        from now on, between segments that can be.
        """
        self.entries.served(key, entry)
        if entry.others:
            entry.sampling = taken_in.sampling
            if (
                entry.graphed is not None
                and entry.graphed.uncapturable
                and taken_in.refuse(entry.others, entry.report.not_captured_because or "")
            ):
                self.forget(key, entry, "somebody else's function that no graph can hold")

    def leave(self, key: Hashable, entry: CacheEntry, module: torch.nn.Module, change: str) -> None:
        """An entry's guard has found this change. The entry stays, without its graph, in case the change is taken back;
        it is dropped where it would keep alive what the module has let go.
        """
        entry.release()
        self.entries.let_die(module)
        if entry.guard is None or entry.guard.keeps_more_than(module):
            self.entries.remove(key, entry)
        self._changed(key, change)

    def forget(self, key: Hashable, entry: CacheEntry, change: str) -> None:
        """Drop an entry that this change has made useless for good."""
        self.entries.remove(key, entry)
        self._changed(key, change)

    def put_off(self, key: Hashable, entry: CacheEntry, change: str) -> None:
        """Put an entry aside that doesn't fit calls like the present one, because of this change. It may fit others."""
        self.entries.put_off(key, entry)
        self._changed(key, change)

    def _changed(self, key: Hashable, change: str) -> None:
        self.change = change
        self.backoff.succeeded(key)

    def why_again(self, signature: Signature, at_most: int) -> Reason:
        """The reason to give if calls like this one are traced again and again: what differs from those before.

        ``at_most``: how many signatures are kept.
        """
        last = self.entries.last(signature.forms)
        if last is not None and last != signature.key:
            if setting := other_setting(signature.key, last):
                return SETTING_CHANGES(setting=setting)
            return CHANGES(change=f"{difference(signature.key, last)} keeps changing")
        return TAKE_TURNS(most=at_most) if self.entries.full(at_most) else CHANGES(change=self.change)

    def let_go(self, module: torch.nn.Module, sampling: int) -> None:
        """As :meth:`CacheEntries.let_go`, unless a call is running."""
        self._unless_busy(lambda: self.entries.let_go(module, sampling))

    def try_later(self, key: Hashable, reason: str) -> str:
        """Leave a signature alone for a while, and return the reason."""
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
        """Release the graphs whose weights have left this device, unless a call is running."""
        self._unless_busy(self.entries.release_unreadable)

    def release_evicted(self) -> None:
        """Forget graphs that somebody else has evicted, unless a call is running."""
        self._unless_busy(self.entries.release_evicted)

    def _unless_busy(self, do: Callable[[], None]) -> None:
        """Call ``do`` unless another thread holds the lock."""
        if self.lock.acquire(blocking=False):
            try:
                do()
            finally:
                self.lock.release()


class Devices:
    """A module's state on each device that it was called on, and the layout of its weights, which all of them share.

    Args:
        report: the module's.
        store: of the module's weights.
        graphs_of: gives a device's graphs, or None where nothing is captured.

    Attributes:
        last: the device of the last call.
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
        """The state on this device, which counts as that of the last call from now on."""
        on = self._each.get(device)
        if on is None:
            on = self._each.setdefault(device, OnDevice(device, self._graphs_of(device), self._report))
        if on is not self.last:
            for other in self:  # the module may have moved, and then graphs elsewhere are of no use
                if other is not on:
                    other.release_unreadable()
            self.last, self._report.device = on, str(device)
            self._store.lock = on.lock
        return on

    def renew(self) -> None:
        """Start empty in a forked child process: it can't use what the parent has on GPUs."""
        self._each, self.last = {}, None

    def reset(self) -> None:
        """Forget all signatures and release their graphs."""
        for on in self:
            with on.lock:
                on.reset()

    def release_graphs(self) -> None:
        """Release the graphs and the copies of weights."""
        for on in self:
            with on.lock:
                on.entries.release()
                self._drop_copies()

    def restore(self) -> None:
        """Release the graphs, and give the module its weights back in their own layout."""
        with ExitStack() as locks:
            for on in sorted(self, key=lambda on: str(on.device)):  # in one order, or two threads could deadlock
                locks.enter_context(on.lock)
                on.entries.release()
            self._lay_out_plainly()

    def restore_unless_used(self) -> None:
        """Lay the weights as their module has them if no program reads them otherwise: eager's bits depend on it."""
        if not any(on.entries.programs() for on in self):
            self._lay_out_plainly()

    def make_room(self, on: OnDevice) -> int:
        """Release a device's graphs and all copies of weights. Returns the graphs' bytes."""
        self._drop_copies()
        return on.make_room()

    def _drop_copies(self) -> None:
        """Release the copies of weights (8 bits). A later call makes them anew."""
        self._store.copies.drop()
        self._report.copied_bytes = 0

    def _lay_out_plainly(self) -> None:
        self._store.restore()
        self._report.adopted_bytes = self._report.copied_bytes = 0
