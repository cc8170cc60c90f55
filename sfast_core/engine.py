"""What happens at each call of a compiled module.

The first call of a signature is recorded and makes a program (:mod:`.first_call`). Later calls run that: kernel by
kernel at first, and from the call number ``capture_after`` on as a CUDA graph. Whenever something goes wrong, the
original forward runs instead; the reason is logged once and counted in the report.
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
    device_of,
    raised_here,
    recording,
    what_watches,
)
from .capture.callers_own import with_callers_own
from .capture.live.modules import finishing
from .capture.record import LeafScope
from .config import CompileConfig
from .first_call import FirstCall
from .graphed import GraphedProgram
from .lowering import lower
from .programs.compiled_state import CompiledState
from .programs.entries import CacheEntry
from .programs.on_device import OnDevice
from .programs.segmented import Unfinished
from .reporting.reason import PYTHON, reason_of, told
from .reporting.reasons.calls import NOT_KEYED
from .reporting.reasons.memory import OUT_OF_MEMORY
from .reporting.reasons.records import FAILED
from .runtime.any_store import Store
from .runtime.graphs import device_graphs
from .several import OfPart
from .weights import WeightsChanged, WeightsElsewhere

log = logging.getLogger("fast_compile")
Forward = Callable[..., Any]
InParts = Callable[[torch.nn.Module, str, Callable[[], Any]], Any]


class Engine(CompiledState):
    """Compiles one module. It doesn't hold the module: the caller passes that and its forward with each call.

    Thread-safe: what it has on a device is used under that device's lock.

    Attributes:
        in_parts: how a host has a call computed part by part whose forward can't be fused as a whole. It is given the
            module, the reason and the original call. None: such a call runs as it was.
    """

    def __init__(
        self,
        name: str,
        config: CompileConfig,
        leaf_scope: LeafScope | None = None,
        store: Store | None = None,
        host: str = PYTHON,
    ) -> None:
        super().__init__(
            name,
            config,
            leaf_scope,
            store,
            host,
            # by name at each call, so that tests and tools may replace this module's ``device_graphs`` and ``lower``
            graphs_of=lambda device: device_graphs(device),
            lower=lambda *args, **kwargs: lower(*args, **kwargs),
        )
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
        """What ``original(*args, **kwargs)`` returns, computed in the fastest way that is known to be right.

        Args:
            module: the module that ``original`` is the forward of. It is held for the length of the call alone.
            original: the module's forward as it was.
            args: its arguments, without those that can't change what it computes.
            kwargs: its keyword arguments, likewise.
            eager: runs the forward with everything that the host passed. None: ``original`` with these arguments.
            around: the call's own options and objects, for code that runs live.
            seen: whether the caller may look at lists and dicts among the arguments after the call, so that what the
                forward writes into them matters. Always so where ``eager`` is None.
        """
        call = Call(module, original, args, kwargs, eager, around, seen)
        if recording():  # inside another module's recorded call
            with self.store.plain():
                return call.eager()
        if watching := what_watches():
            return self.run_eager(watching, call.eager)
        try:
            signature = call.sign()
            if signature.objects and (reason := self.tracer.why_not(signature)):
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
        """What a call with a signature returns, computed on this device alone."""
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
                    self.tracer.live.let_die(module)
                if entry is None:
                    reason = on.against_others(signature.key, module, call.around, self.taken_in) or on.waiting(
                        signature
                    )
                    if reason is None:
                        return FirstCall(self, on, call).run()
                elif entry.graphed is None:
                    reason, in_parts = entry.reason, self.in_parts is not None
                else:
                    try:
                        return self._run(on, call, entry, replayed)
                    except self.interruptions:
                        raise
                    except Exception as error:
                        if (reason := self._not_run(on, call, entry, error)) is None:
                            return FirstCall(self, on, call).run()
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
        """Run a call as it was that has no signature, or one that must not be recorded."""
        reason = reason_of(error)
        if isinstance(error, GradientsRecorded):
            with self.store.lock:
                self.store.leave_to_autograd()
                self.report.adopted_bytes = self.store.adopted_bytes
        elif self.in_parts is not None and told(reason).code == NOT_KEYED.code:
            # the argument without a key may not be one of those that reach the model's blocks
            return self.in_parts(call.module, reason, call.eager)
        return self.run_eager(reason, call.eager)

    def _changed(self, entry: CacheEntry, module: torch.nn.Module) -> str | None:
        """What has changed among the things that the recorded call read, or None."""
        return None if entry.guard is None else entry.guard.changed(module) or self.tracer.live.over(module)

    def _changed_entry(self, on: OnDevice, call: Call, left: CacheEntry, change: str) -> CacheEntry | None:
        """Replace an entry whose guard found a change by another of its signature that fits now, if there is one."""
        key, module = call.signature.key, call.module
        entry = on.entries.another(key, module, call.signature.tensors)
        if entry is None:
            self.reporter.say(f"{change}: tracing again")
            on.leave(key, left, module, change)
            if left.guard is not None and self.tracer.note_change(
                module, change, left.guard, left.others, left.sampling, left.tally.useless
            ):
                on.recompile_limit.clear()
            if self.taken_in.moved(left.places):  # those tensors are inputs from now on, and part of the signature
                call.around.placed = call.around.find_placed()
                key = call.sign().key
                entry = on.entries.take(key, call.signature.tensors)
                if entry is not None and self._changed(entry, module):
                    entry = on.entries.another(key, module, call.signature.tensors)
        return entry

    def _run(self, on: OnDevice, call: Call, entry: CacheEntry, replayed: list[torch.Tensor] | None) -> Any:
        """The call's result by the entry's program. ``replayed``: what its graph has computed ahead, if it has."""
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
        """What becomes of an entry whose program failed: why the original forward runs, or None to trace again."""
        if isinstance(error, torch.cuda.OutOfMemoryError):
            self.reporter.ran_out_of_memory(error, self.devices.make_room(on))
            return OUT_OF_MEMORY()
        if isinstance(error, WeightsElsewhere):
            entry.release()
            return reason_of(error)
        if isinstance(error, OnlyThisCall):
            return reason_of(error)
        if isinstance(error, Unfinished):
            if call.around.set_live is not None and entry.guard is not None:
                # live code has changed something that the trace rests on: whoever reads that runs live from now on
                entry.guard.what = entry.guard.by_others.what
                self.tracer.cut_changing(call.module, f"{call.around.set_live} changed", entry.guard)
            reason = self._unfinished(on, call.signature.key, entry, error)
            call.eager = finishing(call.module, call.around, call.eager)
            return reason
        if isinstance(error, WeightsChanged):
            self.reporter.say(f"{error}: tracing again")
            on.forget(call.signature.key, entry, str(error))
            return on.waiting(call.signature)
        reason = FAILED(error=f"{type(error).__name__}: {error}")
        self.give_up(entry, reason)
        return reason

    def _unfinished(self, on: OnDevice, key: Hashable, entry: CacheEntry, error: Unfinished) -> str:
        """Decide what becomes of an entry whose program couldn't finish a call. Returns why it couldn't."""
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
            self.give_up(entry, FAILED(error=error))
        return reason_of(error)

    def _replay_ahead(self, entry: CacheEntry | None, call: Call, device: torch.device) -> list[torch.Tensor] | None:
        """Start the entry's graph before its guard is checked. None where no graph may run.

        Checking a guard takes up to 4 ms of the CPU's time (SDXL), in which the GPU would have nothing to do. The
        early start is harmless: the graph writes to its own memory alone, and reads no memory that others own by now.
        """
        program = None if entry is None else _program(entry, call)
        if program is None or not (program.captured and program.ahead):
            return None
        try:
            with self.store.pinned(device):
                return program.replay(call.signature.tensors) if program.readable() else None
        except self.interruptions:
            raise
        except Exception:  # the call goes on as if this hadn't been tried, and will meet and report the same error
            log.debug("while replaying %s ahead", self.report.name, exc_info=True)
            return None


def _program(entry: CacheEntry, call: Call) -> GraphedProgram | None:
    """The program for a call: that of several devices if there is one, but not for a part of such a call."""
    return entry.graphed if entry.wide is None or isinstance(call.eager, OfPart) else entry.wide
