"""Decides which of a module's calls several devices compute, along the batch or along rows, and which one does."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from ..capture import Call, CaptureError, Trace
from ..config import CompileConfig
from ..programs.entries import CacheEntry
from ..programs.on_device import Devices
from ..quality.levels import allowed
from ..reporting.reason import reason_of
from ..reporting.reasons.memory import OUT_OF_MEMORY
from ..reporting.reporter import Reporter
from ..runtime.any_store import Store
from ..runtime.backoff import Backoff
from ..runtime.graphs import DeviceGraphs
from ..runtime.program import Program
from .asked import About, Asked, Compute
from .batch import batch_of
from .devices import devices_for
from .in_rows import LEAST_GAIN, InRows
from .in_spans import InSpans
from .others import Others
from .part import OneDevice
from .plan import Plan
from .retarget import copied

log = logging.getLogger("fast_compile")
_Entry = weakref.ref[CacheEntry]
_FEW_CALLS = 8  #: a plan that served fewer calls than that before a change ended it isn't made anew at once


class Several:
    """Computes one module's calls on several devices, where they may be cut. It holds no module, no engine.

    Args:
        config: names the devices.
        store: of the module's weights.
        devices: the engine's state on each device.
        reporter: the module's.
        graphs_of: gives a device's graphs.
        lower: makes programs.

    Attributes:
        wanted: whether the settings name other devices.
        others: what the module has on the other devices.
        apart: names of arguments that tell images of a batch apart; a call with one of them isn't cut along its batch.
    """

    def __init__(
        self,
        config: CompileConfig,
        store: Store,
        devices: Devices,
        reporter: Reporter,
        graphs_of: Callable[[torch.device], DeviceGraphs | None],
        lower: Callable[..., Program],
    ) -> None:
        self.apart: frozenset[str] = frozenset()
        self._store, self._devices, self._reporter = store, devices, reporter
        self._home: torch.device | None = None  # the module's device in the last call
        self._devices_for: dict[torch.device, list[torch.device]] = {}
        self.others = Others(store, reporter, graphs_of)
        self._in_spans = InSpans(store, self.others, lower)
        self._in_rows = InRows(store, self.others, lower, reporter)
        # by the key of a signature:
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()  # cut along the batch
        self._wide: OrderedDict[Hashable, _Entry] = OrderedDict()  # cut along rows
        self._refused: OrderedDict[Hashable, _Entry] = OrderedDict()  # not to be cut as long as it has this entry
        self._not_in_rows: OrderedDict[Hashable, _Entry] = OrderedDict()  # likewise, along rows
        self._backoff = Backoff()
        self._lines: dict[str, str] = {}  # of the report, by a signature's words
        self.configure(config)

    def configure(self, config: CompileConfig) -> None:
        """Take another config. Everything made under the one before must have been released."""
        self._config, self.wanted = config, config.devices is not None
        self._devices_for.clear()

    def call(
        self, call: Call, home: torch.device, compute: Compute, interruptions: tuple[type[BaseException], ...] = ()
    ) -> Any:
        """What a call returns, computed by several devices where that is possible and pays.

        Args:
            call: the call, with its signature.
            home: the module's device.
            compute: computes a call there.
            interruptions: the exceptions by which a host stops a call.
        """
        if home != self._home:  # copies of weights were made for a module on another device
            self.release()
            self._home = home
        where = self.devices_for(home)
        if len(where) < 2:
            return compute(call, home)
        asked = Asked(call, batch_of(call.signature.tensors), where, compute, self._config, interruptions)
        key = call.signature.key
        if call.around.placed:  # those tensors belong to the whole call, and can't be cut
            self._say(
                "placed", f"calls run on {home} alone: other people's functions read tensors that they keep themselves"
            )
            return compute(call, home)
        if asked.batch < 2 or (asked.batch % len(where) and not _alive(self._not_in_rows.get(key))):
            return self._call_in_rows(asked)
        counted = dict(self._reporter.report.calls)
        if (plan := self._plans.get(key)) is not None:
            self._plans.move_to_end(key)
            try:
                with self._alone(where):
                    result = self._in_spans.again(plan, asked)
                if result is not None:
                    plan.served += 1
                    return result[0]
            except interruptions:
                raise
            except Exception as error:
                self._recount(counted)
                self._failed(asked.about, call.served, error)
                return compute(call, home)
            self._recount(counted)
            self._left(key, plan)
        # First traced as a whole: then it is known that the call may run once more, in parts, without effects.
        return self._after_whole(asked, compute(call, home))

    def devices_for(self, home: torch.device) -> list[torch.device]:
        """The devices that calls may be shared between, ``home`` first."""
        found = self._devices_for.get(home)
        if found is None:
            assert self._config.devices is not None
            found = self._devices_for[home] = devices_for(self._config.devices, home)
            if len(found) < 2:
                why = "there is no other device as large, or none of those that are named"
                self._say("", f"all calls run on {home} alone: {why}")
        return found

    def spare(self, trace: Trace, home: torch.device) -> Trace | None:
        """A copy of a trace for other devices to make programs of; None where no others are wanted."""
        return copied(trace) if self.wanted and len(self.devices_for(home)) > 1 else None

    def release(self) -> None:
        """Release what is on the other devices. A later call copies the weights again."""
        self._plans.clear()
        self._wide.clear()
        if self.others:
            for on in self._devices:
                with on.lock:
                    on.entries.forget_replicas()
            self.others.release()

    def reset(self) -> None:
        """Forget what was found out about calls."""
        self.release()
        self._backoff.clear()
        self._refused.clear()
        self._not_in_rows.clear()
        self._lines.clear()
        self._reporter.report.several = []

    def _failed(self, about: About, served: CacheEntry | None, error: Exception) -> None:
        """Compute calls like this one on one device, because of this error: for good where the call itself is the
        cause, else for a while. ``served``: the entry of the whole call.
        """
        log.debug("while computing %s on several devices", self._reporter.report.name, exc_info=error)
        reason = reason_of(error)
        self._plans.pop(about.key, None)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.release()
            reason = OUT_OF_MEMORY().also(f"memory ran out on one of the devices: {error}")
        if isinstance(error, (OneDevice, CaptureError)) and served is not None:
            _keep(self._refused, about.key, weakref.ref(served), self._config.max_signatures)
        else:
            self._backoff.failed(about.key, reason)
        so_many = f"{about.batch} at once run" if about.batch > 1 else "one at a time runs"
        self._say(about.words, f"{so_many} on {about.home} alone, because {reason}", logging.WARNING)

    def _is_left_to_one(self, call: Call) -> bool:
        """Whether calls like this one are left to one device, for good or for a while."""
        key = call.signature.key
        refused = self._refused.get(key)
        if call.served is None or (refused is not None and refused() is call.served):
            return True
        return self._backoff.reason(key) is not None

    def _left(self, key: Hashable, plan: Plan) -> None:
        """Drop a plan that a change has ended; if that happens often, none is made for a while: proving costs more."""
        del self._plans[key]
        if plan.served < _FEW_CALLS:
            self._backoff.failed(key, "what it rests on changes at nearly every call")
        else:
            self._backoff.succeeded(key)

    def _recount(self, before: dict[str, int]) -> None:
        """Put the report's counts back: what ran since were parts of a call, which is counted as one."""
        calls = self._reporter.report.calls
        for name in [*calls]:
            calls[name] = before.get(name, 0)

    def _after_whole(self, asked: Asked, whole: Any) -> Any:
        """Try to cut a call along its batch that one device has computed. Returns the result to use."""
        if self._is_left_to_one(asked.call):
            return whole
        about = asked.about
        counted = dict(self._reporter.report.calls)
        try:
            with self._alone(asked.where):
                _check_exact(asked.config)
                plan, result = self._in_spans.first(asked, self.apart)
            _keep(self._plans, about.key, plan, self._config.max_signatures)
            shares = (f"{end - begin} on {there}" for (begin, end), there in zip(plan.spans, asked.where, strict=False))
            self._say(about.words, f"{_so_many(asked.batch)} as {', '.join(shares)}; {self.others.words()}")
            return result
        except asked.interruptions:
            raise
        except Exception as error:
            self._failed(about, asked.call.served, error)
            return whole
        finally:
            self._recount(counted)

    def _call_in_rows(self, asked: Asked) -> Any:
        """What a call returns that is cut along rows: of one image, or of a number that devices can't share evenly."""
        with self._alone(asked.where) if asked.call.signature.key in self._wide else nullcontext():
            whole = asked.compute(asked.call, asked.where[0])
        entry = asked.call.served
        if entry is None or entry.wide is not None or self._is_left_to_one(asked.call):
            return whole
        about = asked.about
        weakly = weakref.WeakMethod(self._left_alone)
        gain = asked.batch / -(-asked.batch // len(asked.where))  # of spans of whole images
        try:
            with self._alone(asked.where):
                _check_exact(asked.config)
                entry.wide, result, how = self._in_rows.made(
                    asked,
                    whole,
                    max(gain, LEAST_GAIN),
                    lambda error: weakly()(about, error),  # type: ignore[misc]
                )
        except asked.interruptions:
            raise
        except OneDevice as error:
            if asked.batch < 2:
                self._failed(about, entry, error)
                return whole
            _keep(self._not_in_rows, about.key, weakref.ref(entry), self._config.max_signatures)
            return self._after_whole(asked, whole)
        except Exception as error:
            self._failed(about, entry, error)
            return whole
        for _, old in _keep(self._wide, about.key, weakref.ref(entry), self._config.max_signatures):
            _narrow(old())
        self._say(about.words, f"{_so_many(asked.batch)} in rows: {how}; {self.others.words()}")
        return result

    def _left_alone(self, about: About, error: Exception) -> None:
        """Leave calls like this one, which was being computed in rows, to the first device for a while."""
        ref = self._wide.pop(about.key, None)
        entry = None if ref is None else ref()
        _narrow(entry)
        self._failed(about, entry, error)

    def _say(self, of: str, line: str, level: int = logging.INFO) -> None:
        """Log a line once, and keep it in the report until another line is said of the same thing."""
        self._lines.pop(of, None)
        self._lines[of] = line
        while len(self._lines) > self._config.max_signatures:
            self._lines.pop(next(iter(self._lines)))
        self._reporter.report.several = list(self._lines.values())
        self._reporter.say(line, level)

    @contextmanager
    def _alone(self, where: Sequence[torch.device]) -> Iterator[None]:
        """Hold the locks of all these devices' graphs, taken in one order so that threads can't deadlock."""
        with ExitStack() as locks:
            for device in sorted(set(where), key=str):
                locks.enter_context(self._devices.at(device).lock if device == where[0] else self.others.lock(device))
            yield


def _check_exact(config: CompileConfig) -> None:
    if allowed(config) is not None:
        raise OneDevice(f"the quality {config.quality} is measured on one device")


def _so_many(batch: int) -> str:
    return f"{batch} at once are computed" if batch > 1 else "one at a time is computed"


def _alive(entry: weakref.ref[CacheEntry] | None) -> bool:
    return entry is not None and entry() is not None


def _narrow(entry: CacheEntry | None) -> None:
    """Have one device compute the calls that this entry serves."""
    if entry is not None and entry.wide is not None:
        entry.wide.release()
        entry.wide = None


def _keep(kept: OrderedDict[Hashable, Any], key: Hashable, value: Any, at_most: int) -> list[tuple[Hashable, Any]]:
    """Keep a value as the one that was used last. Returns the oldest items above ``at_most``, which are dropped."""
    kept[key] = value
    kept.move_to_end(key)
    return [kept.popitem(last=False) for _ in range(len(kept) - at_most)]
