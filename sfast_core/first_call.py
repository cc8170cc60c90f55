"""What happens at the first call of a signature.

It is recorded while it runs, and the record is rewritten into a fused program. The program's result is compared with
the call's own and, where the two agree, returned in its place, so that the same inputs give the same bits from the
first call on.
"""

from __future__ import annotations

import logging
from typing import Any

import torch

from .capture import Call, CaptureError, Trace, Untraceable
from .capture.callers_own import with_callers_own
from .capture.live.modules import finishing
from .programs.compiled_state import CompiledState
from .programs.deployment import Deployment
from .programs.entries import CacheEntry
from .programs.fusing import Fusing, OverBudget
from .programs.on_device import OnDevice
from .reporting.reason import reason_of
from .reporting.reasons.memory import OUT_OF_MEMORY
from .reporting.reasons.records import NOT_FUSED, NOT_TRACED
from .reporting.signature_report import SignatureReport
from .runtime.collector import collector_paused
from .runtime.recompile_limit import Tally
from .several import OfPart
from .weights import WeightsChanged, WeightsElsewhere

log = logging.getLogger("fast_compile")


class FirstCall:
    """Records one call and makes a program of it. Its user holds the device's lock.

    Args:
        state: the module's.
        on: its state on the call's device.
        call: the call, with its signature.
    """

    def __init__(self, state: CompiledState, on: OnDevice, call: Call) -> None:
        self._state, self._on, self._call = state, on, call
        self._entry = CacheEntry(SignatureReport(str(call.signature)), call.signature.forms)

    # a trace is thousands of objects, all in use: the collector would walk them again and again for nothing
    @collector_paused(lasting=True)
    def run(self) -> Any:
        """The call's result. An entry for its signature is kept only when its program is proved, or the reason against
        one is known: an interruption leaves nothing half done.
        """
        state, on, call, entry = self._state, self._on, self._call, self._entry
        state.reporter.announce("tracing")
        failure = None
        state.store.lay_plain()  # the module's own code runs: results in the strides that they always had
        try:
            result, trace, entry.guard = state.tracer.record(call, on.device)
        except CaptureError as error:  # an error of the recorder's or of the module's own: running it plainly tells
            entry.guard, failure = error.guard, reason_of(error)
            passing = error.passing or isinstance(error.__cause__, torch.cuda.OutOfMemoryError)
        if failure is not None:  # not in the handler above: there the failed call's tensors would still be alive
            return self._not_recorded(failure, passing)
        if isinstance(trace, Untraceable) and trace.passing:
            self._traced()
            if not trace.cut:
                on.backoff.failed(call.signature.key, trace.reason)
            state.reporter.ran_eager(trace.reason)
            return result
        state.report.calls["traced"] += 1
        entry.report.calls += 1
        if isinstance(trace, Untraceable):
            entry.tally = self._traced()
            self._keep(NOT_TRACED.because(trace.reason))
            return result
        try:
            return self._fused(trace, result)
        except state.interruptions:
            state.devices.restore_unless_used()
            raise
        except Exception as error:
            self._not_fused(trace, error)
        except BaseException:
            state.devices.restore_unless_used()
            raise
        return result

    def _traced(self) -> Tally:
        """Note that the signature was traced. Returns where to count the calls that the trace serves."""
        on, signature = self._on, self._call.signature
        return on.recompile_limit.traced(signature.forms, on.why_again(signature, self._state.config.max_signatures))

    def _keep(self, reason: str | None = None) -> None:
        """Keep the entry: with its program, or with the ``reason`` why calls of this signature run as they were."""
        if reason is not None:
            self._state.give_up(self._entry, reason)
        self._on.entries.add(self._call.signature.key, self._entry, self._state.config.max_signatures)

    def _not_recorded(self, reason: str, passing: bool) -> Any:
        """Run the call plainly after its recording failed, and decide whether to remember the failure."""
        call = self._call
        eager = call.eager
        if not isinstance(eager, OfPart):
            eager = finishing(call.module, call.around, eager)
        result = self._state.run_eager(reason, eager)
        if not passing:  # the plain call went well: don't run this signature twice each time
            self._traced()
            self._keep(reason)
        return result

    def _fused(self, trace: Trace, result: Any) -> Any:
        """Make the program and return its result for the recorded call, not the call's own: so the first picture of a
        seed has the same bits as all later ones.
        """
        state, on, call, entry = self._state, self._on, self._call, self._entry
        if entry.guard is not None and entry.guard.hooked:
            raise CaptureError(entry.guard.hooked)
        entry.others, entry.sampling = tuple(trace.others), state.taken_in.sampling
        entry.report.recorded_in = list(trace.others.values())
        entry.handed, entry.places = trace.outputs.effects.handed, trace.places
        entry.has_callers_own = trace.outputs.has_callers_own
        entry.spare = state.several.spare(trace, on.device)
        there = Deployment(on.device, on.graphs, state.store, state.reporter)
        fusing = Fusing(state.lower, state.config, state.sensitivity, there)
        fused = fusing.fuse(entry, trace, call, result)
        on.backoff.succeeded(call.signature.key)
        entry.tally = self._traced()
        self._keep()
        if on.graphs is None or not state.config.cuda_graphs:
            state.reporter.ready(entry.report)
        call.served = entry
        return with_callers_own(fused, call.args, call.kwargs) if entry.has_callers_own else fused

    def _not_fused(self, trace: Trace, error: Exception) -> None:
        """Decide what becomes of a signature whose trace couldn't be made a program."""
        state, on, call = self._state, self._on, self._call
        key, reason = call.signature.key, reason_of(error)
        if isinstance(error, torch.cuda.OutOfMemoryError):
            # a proof needs more memory than either run: the call's result is held while the program computes
            state.reporter.ran_out_of_memory(error, state.devices.make_room(on))
            state.reporter.ran_eager(on.try_later(key, OUT_OF_MEMORY()))
            return
        passing = isinstance(error, (WeightsElsewhere, WeightsChanged, OverBudget))
        if not passing:
            log.debug("while compiling %s", state.report.name, exc_info=error)
        if passing or state.tracer.not_fused(trace, reason, call.around):
            state.reporter.ran_eager(on.try_later(key, reason))
            return
        self._traced()
        self._keep(NOT_FUSED.because(reason, error=type(error).__name__))
