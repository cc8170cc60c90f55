"""What an engine has on one device: what became of each signature there, and when to try again what went wrong."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from typing import Any

import torch

from ..capture import Signature, Surroundings, TakenIn, difference, other_setting
from ..reporting.reasons import CHANGES, SETTING_CHANGES, TAKE_TURNS, Reason
from ..reporting.report import ModuleReport
from ..runtime.backoff import Backoff
from ..runtime.graphs import DeviceGraphs
from ..runtime.recompile_limit import Thrashing
from .entries import Variant, Variants


class OnDevice:
    """A module's compiled state on one device. Not thread-safe but for its ``lock``, which whoever uses the rest holds.

    Args:
        device: the device.
        graphs: that device's. None: nothing is captured there.
        report: of the module.

    Attributes:
        lock: that of the device's graphs where it has some, since all of these share memory.
        variants: the signatures.
        backoff: failures that may pass, by signature.
        thrashing: traces that served no call.
        change: what made an end of the last trace that had one.
    """

    def __init__(self, device: torch.device, graphs: DeviceGraphs | None, report: ModuleReport) -> None:
        self.device = device
        self.graphs = graphs
        self.variants = Variants(report)
        self.backoff = Backoff()
        self.thrashing = Thrashing()
        self.change = ""
        self._own_lock = threading.RLock()

    @property
    def lock(self) -> Any:
        return self.graphs.lock if self.graphs is not None else self._own_lock

    def waiting(self, signature: Signature) -> str | None:
        """Why a call without a trace isn't traced now; None where it is."""
        return self.backoff.reason(signature.key) or self.thrashing.reason(signature.layout)

    def against_others(self, key: Hashable, module: torch.nn.Module, around: Surroundings, taken_in: TakenIn) -> str | None:
        """Why a call isn't traced with functions of others in it that were admitted before it, or None."""
        kinds = self.variants.ways(key, module)
        if kinds:
            taken_in.refuse(kinds, "it goes another way from step to step")
        return taken_in.refused(around)

    def served(self, key: Hashable, variant: Variant, taken_in: TakenIn) -> None:
        """A call has its result from this variant. Functions of others by which it has no graph run live from now on, between segments that have one."""
        self.variants.served(key, variant)
        if variant.others:
            variant.sampling = taken_in.sampling
            if variant.graphed is not None and variant.graphed.uncapturable and taken_in.refuse(variant.others, variant.report.not_captured_because or ""):
                self.forget(key, variant, "a function of others that no graph can hold")

    def leave(self, key: Hashable, variant: Variant, module: torch.nn.Module, change: str) -> None:
        """What was found out about this signature holds no more, because of this change; should that be taken back, it holds again.

        Until then it has no graph, and it is forgotten where it would keep what the module has let go. Others are looked at when they are called.
        """
        variant.release()
        if variant.guard is None or variant.guard.keeps_more_than(module):
            self.variants.remove(key, variant)
        self._changed(key, change)

    def forget(self, key: Hashable, variant: Variant, change: str) -> None:
        """What was found out about this signature will never hold again, because of this change."""
        self.variants.remove(key, variant)
        self._changed(key, change)

    def put_off(self, key: Hashable, variant: Variant, change: str) -> None:
        """This variant doesn't do for calls like this one, because of this change; others of its signature may, and it may again."""
        self.variants.put_off(variant)
        self._changed(key, change)

    def _changed(self, key: Hashable, change: str) -> None:
        self.change = change
        self.backoff.succeeded(key)

    def why_again(self, signature: Signature, at_most: int) -> Reason:
        """What is different from the calls that were traced before, should that happen again and again. ``at_most``: so many are kept."""
        last = self.variants.last(signature.layout)
        if last is not None and last != signature.key:
            if setting := other_setting(signature.key, last):
                return SETTING_CHANGES(setting=setting)
            return CHANGES(change=f"{difference(signature.key, last)} is another")
        return TAKE_TURNS(most=at_most) if self.variants.full(at_most) else CHANGES(change=self.change)

    def let_go(self, module: torch.nn.Module, sampling: int) -> None:
        """Functions of others that nobody uses any more are to go, with what they hold: those that were called neither in this sampling nor in the one before."""
        self._unless_busy(lambda: self.variants.let_go(module, sampling))

    def try_later(self, key: Hashable, reason: str) -> str:
        """Leave a signature alone for a while. Returns the reason."""
        self.backoff.failed(key, reason)
        return reason

    def make_room(self) -> int:
        """Release all graphs of the device, of whatever module. Returns their bytes."""
        freed = self.graphs.release_all() if self.graphs else 0
        self.variants.release()
        return freed

    def reset(self) -> None:
        """Forget all signatures and release their graphs."""
        self.variants.clear()
        self.backoff.clear()
        self.thrashing.clear()

    def release_unreadable(self) -> None:
        """Release the graphs whose weights are gone from this device."""
        self._unless_busy(self.variants.release_unreadable)

    def release_evicted(self) -> None:
        """Let go of graphs that others evicted."""
        self._unless_busy(self.variants.release_evicted)

    def _unless_busy(self, do: Callable[[], None]) -> None:
        """``do()``, if no other thread is inside."""
        if self.lock.acquire(blocking=False):
            try:
                do()
            finally:
                self.lock.release()
