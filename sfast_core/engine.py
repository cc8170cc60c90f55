"""Compiles one module: what happens at each call of it.

The first call of a signature is recorded while it runs and rewritten; the fused program's result is compared with the
call's own and, where they agree, returned in its place, so that the same inputs give the same bits from the first call
on. From then on the program runs, at first kernel by kernel, from ``capture_after`` on as a CUDA graph. Whatever goes
wrong on the way, the original forward runs instead, and the reason is logged once and counted in the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from typing import Any

import torch

from .capture import (
    Call,
    CaptureError,
    GradientsRecorded,
    OnlyThisCall,
    Surroundings,
    ThreadState,
    Trace,
    Untraceable,
    device_of,
    raised_here,
    recording,
    what_watches,
)
from .capture.callers_own import with_callers_own
from .capture.live.modules import finishing
from .capture.record import LeafScope
from .config import CompileConfig
from .graphed import GraphedProgram
from .lowering import lower
from .programs.compiled_state import CompiledState
from .programs.entries import CacheEntry
from .programs.fusing import Fusing, OverBudget
from .programs.on_device import OnDevice
from .programs.segmented import Unfinished
from .reporting.reason import PYTHON, reason_of, told
from .reporting.reasons.calls import NOT_KEYED
from .reporting.reasons.memory import OUT_OF_MEMORY
from .reporting.reasons.records import FAILED, NOT_FUSED, NOT_TRACED
from .reporting.report import SignatureReport
from .runtime.any_store import Store
from .runtime.collector import collector_paused
from .runtime.graphs import device_graphs
from .runtime.recompile_limit import Tally
from .several import OfPart
from .weights import WeightsChanged, WeightsElsewhere

log = logging.getLogger("fast_compile")
Forward = Callable[..., Any]
InParts = Callable[[torch.nn.Module, str, Callable[[], Any]], Any]


class Engine(CompiledState):
    """Compiles one module, without holding it: the caller passes the original forward with each call.

    Thread-safe: what it has on a device is used under that device's lock.

    Attributes:
        in_parts: runs a call of a forward that can't be fused as a whole (the module, why not, the call) where a host
            knows how to in parts.
        interruptions: the exceptions by which a host stops a call. They say nothing about the call, and always reach
            the host.
    """

    def __init__(
        self,
        name: str,
        config: CompileConfig,
        leaf_scope: LeafScope | None = None,
        store: Store | None = None,
        host: str = PYTHON,
    ) -> None:
        # looked up at each call: the two are this module's, for who watches or replaces them
        super().__init__(
            name,
            config,
            leaf_scope,
            store,
            host,
            lambda device: device_graphs(device),
            lambda *given, **named: lower(*given, **named),
        )
        self.interruptions: tuple[type[BaseException], ...] = ()
        self.in_parts: InParts | None = None

    def call(
        self,
        module: torch.nn.Module,
        original: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        eager: Callable[[], Any] | None = None,
        around: Surroundings | None = None,
        seen: bool = False,
    ) -> Any:
        """What ``original(*args, **kwargs)`` returns, by the fastest way that is known to be right.

        Args:
            module: the module whose forward ``original`` is; only used while it is called.
            original: the module's forward as it was.
            args: its arguments, as far as they may steer it.
            kwargs: its keyword arguments, likewise.
            eager: runs the forward with all that the host passed. None: ``original`` with these arguments.
            around: what the call brings along for code that runs live.
            seen: the caller looks at the arguments' lists and dicts again when the call is over. Else only where
                ``eager`` is None: a host keeps its own.
        """
        call = Call(module, original, args, kwargs, eager, around, seen)
        if recording():  # inside another module's recorded call
            with self.store.plain():
                return call.eager()
        if watching := what_watches():
            return self.run_eager(watching, call.eager)
        try:
            signature = call.sign()
            if signature.objects and (reason := self._tracer.why_not(signature)):
                raise CaptureError(reason)
            device = device_of(module, signature.tensors, self.config.cpu_allowed)
        except CaptureError as error:
            return self._not_keyed(call, error)
        except Exception as error:
            return self.run_eager(f"its arguments can't be compared: {type(error).__name__}: {error}", call.eager)
        return (
            self.several.call(call, device, self._compute, self.interruptions)
            if self.several.wanted
            else self._compute(call, device)
        )

    def _compute(self, call: Call, device: torch.device) -> Any:
        """What a signed call returns, computed on this device alone."""
        module, signature = call.module, call.signature
        on, before, in_parts = self.devices.at(device), ThreadState(), False
        with on.lock, self.taken_in.here(call.around):
            try:
                entry = on.entries.take(signature.key, signature.tensors, self.taken_in.sampling)
                replayed = self._replay_ahead(entry, call, device)
                if entry is not None and (change := self._changed(entry, module)):
                    entry, replayed = self._changed_entry(on, call, entry, change), None
                    signature = call.signature
                if entry is None or entry.graphed is None:  # the module's own code is about to run
                    on.entries.let_die(module)
                    self._tracer.live.let_die(module)
                if entry is None:
                    reason = on.against_others(signature.key, module, call.around, self.taken_in) or on.waiting(
                        signature
                    )
                    if reason is None:
                        return self._first_call(on, call)
                elif entry.graphed is None:
                    reason, in_parts = entry.reason, self.in_parts is not None
                else:
                    try:
                        return self._run(on, call, entry, replayed)
                    except self.interruptions:
                        raise
                    except Exception as error:
                        if (reason := self._not_run(on, call, entry, error)) is None:
                            return self._first_call(on, call)
            except BaseException as error:
                before.put_back(error)
                if not isinstance(error, Exception) or isinstance(error, self.interruptions) or not raised_here(error):
                    raise
                log.debug("in a call of %s", self.report.name, exc_info=True)
                reason = FAILED(error=f"{type(error).__name__}: {error}")
        if in_parts and self.in_parts is not None and not isinstance(call.eager, OfPart):
            return self.in_parts(module, reason, call.eager)
        return self.run_eager(reason, call.eager)

    def _not_keyed(self, call: Call, error: CaptureError) -> Any:
        """Run a call that has no signature, or none that may be recorded."""
        reason = reason_of(error)
        if isinstance(error, GradientsRecorded):
            with self.store.lock:
                self.store.leave_to_autograd()
                self.report.adopted_bytes = self.store.adopted_bytes
        elif self.in_parts is not None and told(reason).code == NOT_KEYED.code:  # its blocks may not look at that
            return self.in_parts(call.module, reason, call.eager)
        return self.run_eager(reason, call.eager)

    def _changed(self, entry: CacheEntry, module: torch.nn.Module) -> str | None:
        """What has changed of what an entry rests on, or None."""
        return None if entry.guard is None else entry.guard.changed(module) or self._tracer.live.over(module)

    def _changed_entry(self, on: OnDevice, call: Call, left: CacheEntry, change: str) -> CacheEntry | None:
        """Another entry of the call's signature that fits what the module reads now, in the place of one that doesn't
        any more; None where there is none.
        """
        key, module = call.signature.key, call.module
        entry = on.entries.another(key, module, call.signature.tensors)
        if entry is None:
            self.reporter.say(f"{change}: tracing again")
            on.leave(key, left, module, change)
            if left.guard is not None and self._tracer.note_change(
                module, change, left.guard, left.others, left.sampling, left.tally.useless
            ):
                on.recompile_limit.clear()
            if self.taken_in.moved(left.places):  # inputs of this call, then
                call.around.placed = call.around.find_placed()
                key = call.sign().key
                entry = on.entries.take(key, call.signature.tensors)
                if entry is not None and self._changed(entry, module):
                    entry = on.entries.another(key, module, call.signature.tensors)
        return entry

    def _run(self, on: OnDevice, call: Call, entry: CacheEntry, replayed: list[torch.Tensor] | None) -> Any:
        """What the entry's program makes of the call; ``replayed``: what its graph has made of it already."""
        program = _program(entry, call)
        assert program is not None
        with self.store.pinned(on.device):
            call.around.watch = entry.watch
            result = program.run(call.signature.tensors, self.config, replayed, call.around)
        for hand_on in entry.handed:
            hand_on(call.around.options)
        on.served(call.signature.key, entry, self.taken_in)
        call.served = entry
        return with_callers_own(result, call.args, call.kwargs) if entry.has_callers_own else result

    def _not_run(self, on: OnDevice, call: Call, entry: CacheEntry, error: Exception) -> str | None:
        """What becomes of an entry whose program failed, and why the original forward runs instead; None where the call
        is to be traced again.
        """
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.reporter.ran_out_of_memory(error, self.devices.make_room(on))
            return OUT_OF_MEMORY()
        if isinstance(error, WeightsElsewhere):
            entry.release()
            return reason_of(error)
        if isinstance(error, OnlyThisCall):
            return reason_of(error)
        if isinstance(error, Unfinished):
            if call.around.set_live is not None and entry.guard is not None:  # who reads that runs live from now on
                entry.guard.what = entry.guard.by_others.what
                self._tracer.cut_changing(call.module, f"{call.around.set_live} changed", entry.guard)
            reason = self._unfinished(on, call.signature.key, entry, error)
            call.eager = finishing(call.module, call.around, call.eager)
            return reason
        if isinstance(error, WeightsChanged):
            self.reporter.say(f"{error}: tracing again")
            on.forget(call.signature.key, entry, str(error))
            return on.waiting(call.signature)
        reason = FAILED(error=f"{type(error).__name__}: {error}")
        self._give_up(entry, reason)
        return reason

    def _unfinished(self, on: OnDevice, key: Hashable, entry: CacheEntry, error: Unfinished) -> str:
        """What becomes of an entry whose program couldn't finish a call, and why the original forward does."""
        if isinstance(error.__cause__, self.interruptions):
            raise error.__cause__
        if isinstance(error.__cause__, WeightsChanged):
            self.reporter.say(f"{error}, and tracing again")
            on.forget(key, entry, str(error))
        elif error.another:
            self.reporter.say(str(error))
            on.put_off(key, entry, str(error))
        elif isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
            self.reporter.ran_out_of_memory(error.__cause__, self.devices.make_room(on))
            return OUT_OF_MEMORY()
        elif error.ours:
            self._give_up(entry, FAILED(error=error))
        return reason_of(error)

    def _replay_ahead(self, entry: CacheEntry | None, call: Call, device: torch.device) -> list[torch.Tensor] | None:
        """What the signature's graph makes of this call, before it is known whether that may be used; None where no
        graph may run.

        To look at everything that steers a forward takes up to 4 ms of the CPU's time (SDXL), in which the GPU would
        wait where the host has just waited for the GPU. The graph writes to memory of its own alone, and it reads no
        memory of others.
        """
        program = None if entry is None else _program(entry, call)
        if program is None or not (program.captured and program.ahead):
            return None
        try:
            with self.store.pinned(device):
                return program.replay(call.signature.tensors) if program.readable() else None
        except self.interruptions:
            raise
        except Exception:  # found again, and said, where the call goes on as if this had not been tried
            log.debug("while replaying %s ahead", self.report.name, exc_info=True)
            return None

    # -- a signature's first call -----------------------------------------------------------------------------------

    # a trace is thousands of objects: the collector would walk them again and again, and find nothing
    @collector_paused()
    def _first_call(self, on: OnDevice, call: Call) -> Any:
        """Record the call, and make a program of it. The entry is kept when it is known what it is, not before."""
        self.reporter.announce("tracing")
        entry = CacheEntry(SignatureReport(str(call.signature)), call.signature.layout)
        failure = None
        self.store.lay_plain()  # the host shall get what it always got, in the strides that it always had
        try:
            result, trace, entry.guard = self._tracer.record(call, on.device)
        except CaptureError as error:  # the module's own, or one of recording: the plain call tells
            entry.guard, failure = error.guard, reason_of(error)
            passing = error.passing or isinstance(error.__cause__, torch.cuda.OutOfMemoryError)
        if failure is not None:  # only here, where the failed call's tensors are gone
            return self._not_recorded(on, call, entry, failure, passing)
        if isinstance(trace, Untraceable) and trace.passing:
            self._traced(on, call)
            if not trace.cut:
                on.backoff.failed(call.signature.key, trace.reason)
            self.reporter.ran_eager(trace.reason)
            return result
        self.report.calls["traced"] += 1
        entry.report.calls += 1
        if isinstance(trace, Untraceable):
            entry.tally = self._traced(on, call)
            self._keep(on, call, entry, NOT_TRACED.because(trace.reason))
            return result
        try:
            return self._fused(on, call, entry, trace, result)
        except self.interruptions:
            self.devices.restore_unless_used()
            raise
        except Exception as error:
            self._not_fused(on, call, entry, trace, error)
        except BaseException:
            self.devices.restore_unless_used()
            raise
        return result

    def _traced(self, on: OnDevice, call: Call) -> Tally:
        """Note that a signature was traced; where to count the calls that this serves."""
        return on.recompile_limit.traced(
            call.signature.layout, on.why_again(call.signature, self.config.max_signatures)
        )

    def _keep(self, on: OnDevice, call: Call, entry: CacheEntry, reason: str | None = None) -> None:
        """Keep what a signature became: a program, or without one the reason why it runs as it was."""
        if reason is not None:
            self._give_up(entry, reason)
        on.entries.add(call.signature.key, entry, self.config.max_signatures)

    def _not_recorded(self, on: OnDevice, call: Call, entry: CacheEntry, reason: str, passing: bool) -> Any:
        """What the plain call returns behind a recording that failed."""
        eager = call.eager
        if not isinstance(eager, OfPart):
            eager = finishing(call.module, call.around, eager)
        result = self.run_eager(reason, eager)
        if not passing:  # the plain call went well: don't run this signature twice each time
            self._traced(on, call)
            self._keep(on, call, entry, reason)
        return result

    def _fused(self, on: OnDevice, call: Call, entry: CacheEntry, trace: Trace, result: Any) -> Any:
        """What the trace's program makes of the recorded call: the first picture of a seed has the bits of all later
        ones.
        """
        if entry.guard is not None and entry.guard.hooked:
            raise CaptureError(entry.guard.hooked)
        entry.others, entry.sampling = tuple(trace.others), self.taken_in.sampling
        entry.report.recorded_in = list(trace.others.values())
        entry.handed, entry.places = trace.outputs.effects.handed, trace.places
        entry.has_callers_own = trace.outputs.has_callers_own
        entry.spare = self.several.spare(trace, on.device)
        fusing = Fusing(lower, self.store, self.config, self._sensitivity, self.reporter)
        fused = fusing.fuse(on, entry, trace, call, result)
        on.backoff.succeeded(call.signature.key)
        entry.tally = self._traced(on, call)
        self._keep(on, call, entry)
        if on.graphs is None or not self.config.cuda_graphs:
            self.reporter.ready(entry.report)
        call.served = entry
        return with_callers_own(fused, call.args, call.kwargs) if entry.has_callers_own else fused

    def _not_fused(self, on: OnDevice, call: Call, entry: CacheEntry, trace: Trace, error: Exception) -> None:
        """What becomes of a signature whose trace has no program."""
        key, reason = call.signature.key, reason_of(error)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            # the result and the fused program's intermediates, beside one another
            self.reporter.ran_out_of_memory(error, self.devices.make_room(on))
            self.reporter.ran_eager(on.try_later(key, OUT_OF_MEMORY()))
            return
        passing = isinstance(error, (WeightsElsewhere, WeightsChanged, OverBudget))
        if not passing:
            log.debug("while compiling %s", self.report.name, exc_info=error)
        if passing or self._tracer.not_fused(trace, reason, call.around):
            self.reporter.ran_eager(on.try_later(key, reason))
            return
        self._traced(on, call)
        self._keep(on, call, entry, NOT_FUSED.because(reason, error=type(error).__name__))


def _program(entry: CacheEntry, call: Call) -> GraphedProgram | None:
    """What computes a call: several devices where they can, but not a part of a call that is cut already."""
    return entry.graphed if entry.wide is None or isinstance(call.eager, OfPart) else entry.wide
