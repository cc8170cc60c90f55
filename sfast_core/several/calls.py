"""The calls of one module on several devices: which are cut, proved, computed in parts and put together, and which aren't, and why."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any

import torch

from ..capture import Call, CaptureError, Trace, autocast_off, covers
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..programs.entries import CacheEntry
from ..programs.on_device import Devices
from ..quality.levels import allowed
from ..reporting.reason import reason_of
from ..reporting.reasons import OUT_OF_MEMORY
from ..reporting.report import SignatureReport
from ..reporting.reporter import Reporter
from ..runtime.any_store import Store
from ..runtime.backoff import Backoff
from ..runtime.graphs import DeviceGraphs
from ..runtime.program import Program
from .batch import Span, batch_of, sent, spans
from .elsewhere import copied, on_device, why_not_elsewhere
from .in_rows import LEAST_GAIN, InRows
from .others import Others
from .part import OneDevice
from .places import places
from .plan import Plan, built, launching_on, named, part_of, tensors_of
from .proving import proved
from .replica import ReplicaStore

log = logging.getLogger("fast_compile")
Compute = Callable[[Call, torch.device], Any]
_FEW_CALLS = 8  #: where a plan has served fewer before it holds no more, it isn't made anew at once


class Several:
    """Computes one module's calls on several devices, where they may be cut. It holds neither the module nor the engine.

    Args:
        config: names the devices.
        store: of the module's weights.
        devices: what the engine has on each.
        reporter: of the module.
        graphs_of: a device's graphs.
        lower: makes programs.

    Attributes:
        wanted: whether the settings name any.
        make_room: a host frees memory of a device, if it can: so many bytes are wanted there.
        apart: names of arguments that say which image is which: a call whose code asks for one isn't cut.
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
        self._store, self._devices, self._graphs_of, self._lower, self._reporter = store, devices, graphs_of, lower, reporter
        self._home: torch.device | None = None  # where the module was in the last call
        self._places: dict[torch.device, list[torch.device]] = {}
        self._others = Others(store, reporter, graphs_of)
        self._in_rows = InRows(store, self._others, lower, reporter)
        self._wide: OrderedDict[Hashable, weakref.ref[CacheEntry]] = OrderedDict()  # entries whose whole calls several devices compute in rows
        self._plans: OrderedDict[Hashable, Plan] = OrderedDict()
        self._refused: OrderedDict[Hashable, weakref.ref[CacheEntry]] = OrderedDict()  # for good, as long as the whole call has this entry
        self._not_in_rows: OrderedDict[Hashable, weakref.ref[CacheEntry]] = OrderedDict()  # likewise, for that alone
        self._backoff = Backoff()
        self._lines: dict[str, str] = {}  # of the report, by a signature's words
        self.configure(config)

    def configure(self, config: CompileConfig) -> None:
        """Take another config. What was made under the one before has to be gone."""
        self._config, self.wanted = config, config.devices is not None
        self._places.clear()

    def call(self, call: Call, home: torch.device, compute: Compute, interruptions: tuple[type[BaseException], ...] = ()) -> Any:
        """What a signed call returns.

        Args:
            call: it.
            home: where the module is.
            compute: computes a signed call there.
            interruptions: by which a host stops a call.
        """
        if home != self._home:  # copies for a module that was elsewhere are of no use
            self.release()
            self._home = home
        key, batch, where = call.signature.key, batch_of(call.signature.tensors), self.places(home)
        if len(where) < 2:
            return compute(call, home)
        if batch < 2 or (batch % len(where) and not _alive(self._not_in_rows.get(key))):
            return self._call_in_rows(call, batch, where, compute, interruptions)
        counted = dict(self._reporter.report.calls)
        if (plan := self._plans.get(key)) is not None:
            self._plans.move_to_end(key)
            try:
                with self._alone(where):
                    result = self._again(plan, call, batch, where, compute)
                if result is not None:
                    plan.served += 1
                    return result[0]
            except interruptions:
                raise
            except Exception as error:
                self._recount(counted)
                self._failed(key, str(call.signature), call.served, batch, home, error)
                return compute(call, home)
            self._recount(counted)
            self._left(key, plan)
        whole = compute(call, home)  # traced as it is first: then it is known that it may run once more, in parts, without anybody's noticing
        return self._after_whole(call, whole, batch, where, compute, interruptions)

    def places(self, home: torch.device) -> list[torch.device]:
        """The devices that calls may be cut for, ``home`` first."""
        found = self._places.get(home)
        if found is None:
            assert self._config.devices is not None
            found = self._places[home] = places(self._config.devices, home)
            if len(found) < 2:
                self._say("", f"all calls run on {home} alone: there is no other device as large, or none of those that are named")
        return found

    def spare(self, trace: Trace, home: torch.device) -> Trace | None:
        """A recorded call for other devices to make theirs of; None where there are none."""
        return copied(trace) if self.wanted and len(self.places(home)) > 1 else None

    def release(self) -> None:
        """Give back what the other devices hold. A later call copies the weights again."""
        self._plans.clear()
        self._wide.clear()
        if self._others:
            for on in self._devices:
                with on.lock:
                    on.entries.forget_replicas()
            self._others.release()

    @property
    def make_room(self) -> Callable[[int, torch.device], None] | None:
        return self._others.make_room

    @make_room.setter
    def make_room(self, make_room: Callable[[int, torch.device], None] | None) -> None:
        self._others.make_room = make_room

    def held(self) -> list[tuple[DeviceGraphs | ReplicaStore | None, torch.device]]:
        """What takes memory of the other devices: the graphs of each, of whatever module, and the copies of this one's weights."""
        return self._others.held()

    def reset(self) -> None:
        """Forget what was found out about calls."""
        self.release()
        self._backoff.clear()
        self._refused.clear()
        self._not_in_rows.clear()
        self._lines.clear()
        self._reporter.report.several = []

    def _failed(
        self, key: Hashable, words: str, served: CacheEntry | None, batch: int, home: torch.device, error: Exception
    ) -> None:
        """A call isn't cut, because of this error. One of what it is itself is for good; of anything else it is tried again later."""
        log.debug("while computing %s on several devices", self._reporter.report.name, exc_info=error)
        reason = reason_of(error)
        self._plans.pop(key, None)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.release()
            reason = OUT_OF_MEMORY().also(f"memory ran out on one of the devices: {error}")
        if isinstance(error, (OneDevice, CaptureError)) and served is not None:
            _keep(self._refused, key, weakref.ref(served), self._config.max_signatures)
        else:
            self._backoff.failed(key, reason)
        self._say(words, f"{_so_many(batch)} on {home} alone, because {reason}", logging.WARNING)

    def _is_refused(self, call: Call) -> bool:
        refused = self._refused.get(call.signature.key)
        return refused is not None and refused() is call.served

    def _left(self, key: Hashable, plan: Plan) -> None:
        """What a plan rests on has changed. Where that happens again and again, to show each right costs more than it brings."""
        del self._plans[key]
        if plan.served < _FEW_CALLS:
            self._backoff.failed(key, "what it rests on changes at nearly every call")
        else:
            self._backoff.succeeded(key)

    def _recount(self, before: dict[str, int]) -> None:
        """What has run since were parts of a call, which is counted by itself."""
        calls = self._reporter.report.calls
        for name in [*calls]:
            calls[name] = before.get(name, 0)

    # -- a call that has been computed as a whole ----------------------------------------------------------------------------

    def _after_whole(
        self,
        call: Call,
        whole: Any,
        batch: int,
        where: Sequence[torch.device],
        compute: Compute,
        interruptions: tuple[type[BaseException], ...],
    ) -> Any:
        """The result of a call whose one device's is there: by parts of its batch, if that can be."""
        key, home = call.signature.key, where[0]
        if call.served is None or self._is_refused(call) or self._backoff.reason(key) is not None:
            return whole
        counted = dict(self._reporter.report.calls)
        try:
            with self._alone(where):
                return self._first(call, batch, where, compute)
        except interruptions:
            raise
        except Exception as error:
            self._failed(key, str(call.signature), call.served, batch, home, error)
            return whole
        finally:
            self._recount(counted)

    # -- a call that is cut along its rows -----------------------------------------------------------------------------------

    def _call_in_rows(
        self,
        call: Call,
        batch: int,
        where: Sequence[torch.device],
        compute: Compute,
        interruptions: tuple[type[BaseException], ...],
    ) -> Any:
        """What a call returns that is of one image, or of so many that spans of them would leave some devices without work for a time."""
        key, home, words = call.signature.key, where[0], str(call.signature)
        with self._alone(where) if key in self._wide else nullcontext():
            whole = compute(call, home)
        entry = call.served
        if entry is None or entry.wide is not None or self._is_refused(call) or self._backoff.reason(key) is not None:
            return whole
        weakly = weakref.WeakMethod(self._left_alone)
        gain = batch / -(-batch // len(where))  # of spans of whole images
        try:
            with self._alone(where):
                if allowed(self._config) is not None:
                    raise OneDevice(f"the quality {self._config.quality} is measured on one device")
                program, result, how = self._in_rows.made(
                    call,
                    whole,
                    where,
                    self._config,
                    max(gain, LEAST_GAIN),
                    lambda error: weakly()(key, words, batch, home, error),  # type: ignore[misc]
                )
                entry.wide = program
        except interruptions:
            raise
        except OneDevice as error:
            if batch < 2:
                self._failed(key, words, entry, batch, home, error)
                return whole
            _keep(self._not_in_rows, key, weakref.ref(entry), self._config.max_signatures)
            return self._after_whole(call, whole, batch, where, compute, interruptions)
        except Exception as error:
            self._failed(key, words, entry, batch, home, error)
            return whole
        for _, old in _keep(self._wide, key, weakref.ref(entry), self._config.max_signatures):
            _narrow(old())
        self._say(words, f"{_so_many(batch)} in rows: {how}; {self._others.words()}")
        return result

    def _left_alone(self, key: Hashable, words: str, batch: int, home: torch.device, error: Exception) -> None:
        """A call that several devices were computing in rows is left to the first, and so are others like it for a while."""
        ref = self._wide.pop(key, None)
        entry = None if ref is None else ref()
        _narrow(entry)
        self._failed(key, words, entry, batch, home, error)

    # -- a call that has been cut before -----------------------------------------------------------------------------------

    def _again(self, plan: Plan, call: Call, batch: int, where: Sequence[torch.device], compute: Compute) -> tuple[Any] | None:
        """A call's result, in a tuple; None where what the plan rests on has changed."""
        if plan.whole is not None and (plan.whole.changed(call.module) is not None or not plan.whole.decided(call.signature.tensors)):
            return None
        parts = [part_of(call, batch, span) for span in plan.spans]
        here = where[0]
        given: list[list[torch.Tensor]] = []
        ahead: list[list[torch.Tensor] | None] = []
        for part, entry, program, there in zip(parts[1:], plan.entries[1:], plan.programs, where[1:], strict=False):
            if entry is not plan.entries[0] and not entry.fits(call.module, part.signature.tensors):
                return None
            if not entry.serves(part.signature.tensors):
                raise OneDevice("another part of the batch goes another way")
            with launching_on(there):  # the others first: what this device's own part rests on is looked at while they compute
                given.append([sent(tensor, here, there) for tensor in part.signature.tensors])
                ahead.append(program.replay(given[-1]) if program.ahead and program.captured and program.readable() else None)
        own = compute(parts[0], here)
        if parts[0].served is not plan.entries[0]:
            return None
        results = [tensors_of(own)]
        with self._store.pinned(here):
            for index, (program, inputs, replayed, there) in enumerate(zip(plan.programs, given, ahead, where[1:], strict=False), 1):
                first = plan.entries[0].graphed if plan.entries[index] is plan.entries[0] else None
                with launching_on(there), self._others.replica(index, here, there).found_valid(None if first is None else first.bound):
                    results.append(tensors_of(program.run(inputs, self._config, replayed)))
        return (built(plan, results),)

    # -- the first ---------------------------------------------------------------------------------------------------------

    def _first(self, call: Call, batch: int, where: Sequence[torch.device], compute: Compute) -> Any:
        """The result of a call that has been computed as a whole, after all that a cut rests on has been tried with it.

        Raises:
            OneDevice: it can't be cut.
            CaptureError: the parts' results together aren't the call's.
        """
        here = where[0]
        if allowed(self._config) is not None:
            raise OneDevice(f"the quality {self._config.quality} is measured on one device")
        if name := named((call.args, call.kwargs), self.apart):
            raise OneDevice(f"code of others asks for {name!r}: which image is which")
        whole = _spare(call.served)
        if reason := why_not_elsewhere(whole, whole, here):
            raise OneDevice(reason)
        cuts = spans(batch, len(where))
        parts = [part_of(call, batch, span) for span in cuts]
        own = [compute(part, here) for part in parts]  # all of them here, for the proof of the others
        if any(part.served is None for part in parts):
            raise OneDevice("a part of it can't be compiled")
        for part in parts:
            if reason := why_not_elsewhere(_spare(part.served), whole, here):
                raise OneDevice(reason)
        results, programs = [tensors_of(own[0])], []
        with self._store.pinned(here):
            for index, there in enumerate(where[1 : len(cuts)], 1):
                program, result = self._replica(index, here, there, parts[index], own[index])
                programs.append(program)
                results.append(tensors_of(result))
        with self._store.plain():
            entries = [part.served for part in parts]
            plan = proved(call, batch, Plan(cuts, entries, programs), results, whole.computed_in, self._config.tolerance)
        if (guard := call.served.guard) is not None and (guard.decisions or not all(part.served.guard is not None and covers(part.served.guard, guard) for part in parts)):
            plan.whole = guard
        _keep(self._plans, call.signature.key, plan, self._config.max_signatures)
        self._note(call, batch, cuts, where)
        return built(plan, results)

    def _replica(self, index: int, here: torch.device, there: torch.device, part: Call, expected: Any) -> tuple[GraphedProgram, Any]:
        """The program of a part's entry on another device, and what it computes of the part, which is what was computed ``here``."""
        entry: CacheEntry = part.served
        spare = _spare(entry)
        store, reporter = self._others.replica(index, here, there), self._others.reporter(there)
        with launching_on(there):
            inputs = [sent(tensor, here, there) for tensor in part.signature.tensors]
            program = entry.replicas.get(index)
            if program is None:
                trace = on_device(spare, here, there)
                graphs, report = self._graphs_of(there), SignatureReport(str(part.signature))
                with autocast_off():
                    lowered = self._lower(trace, there, store, self._config, graphs.backend if graphs else None, report, None, None, inputs)
                program = entry.replicas[index] = GraphedProgram(lowered, trace.outputs, store, there, graphs, report, reporter)
                report.calls = 1
            tensors = [sent(tensor, here, there) for tensor in tensors_of(expected)]
            return program, program.prove(inputs, tensors, spare.computed_in, self._config.tolerance)

    def _note(self, call: Call, batch: int, cuts: list[Span], where: Sequence[torch.device]) -> None:
        shares = ", ".join(f"{end - begin} on {there}" for (begin, end), there in zip(cuts, where, strict=False))
        line = f"{batch} at once are computed as {shares}; {self._others.words()}"
        self._say(str(call.signature), line)

    def _say(self, of: str, line: str, level: int = logging.INFO) -> None:
        """Once in the log, and in the report as long as it holds."""
        self._lines.pop(of, None)
        self._lines[of] = line
        while len(self._lines) > self._config.max_signatures:
            self._lines.pop(next(iter(self._lines)))
        self._reporter.report.several = list(self._lines.values())
        self._reporter.say(line, level)

    @contextmanager
    def _alone(self, where: Sequence[torch.device]) -> Iterator[None]:
        """Alone on the graphs of all these devices: taken in one order, since two threads may do this."""
        with ExitStack() as locks:
            for device in sorted(set(where), key=str):
                locks.enter_context(self._devices.at(device).lock if device == where[0] else self._others.lock(device))
            yield


def _spare(entry: CacheEntry) -> Trace:
    assert entry.spare is not None, "kept for each entry where several devices are wanted"
    return entry.spare


def _so_many(batch: int) -> str:
    return f"{batch} at once are computed" if batch > 1 else "one at a time is computed"


def _alive(entry: weakref.ref[CacheEntry] | None) -> bool:
    return entry is not None and entry() is not None


def _narrow(entry: CacheEntry | None) -> None:
    """Calls that this entry serves are computed by one device."""
    if entry is not None and entry.wide is not None:
        entry.wide.release()
        entry.wide = None


def _keep(kept: OrderedDict[Hashable, Any], key: Hashable, value: Any, at_most: int) -> list[tuple[Hashable, Any]]:
    """Keep one more, as the one that was used last. Returns the oldest, which go."""
    kept[key] = value
    kept.move_to_end(key)
    return [kept.popitem(last=False) for _ in range(len(kept) - at_most)]
