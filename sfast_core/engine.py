"""Compiles one module: what happens at each call of it.

The first call of a signature is recorded while it runs and rewritten; the fused program's result is compared with the call's own and,
where they agree, returned in its place, so that the same inputs give the same bits from the first call on.
From then on the program runs, at first kernel by kernel, from ``capture_after`` on as a CUDA graph. Whatever goes wrong on the way, the
original forward runs instead, and the reason is logged once and counted in the report.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable
from contextlib import ExitStack
from functools import partial
from typing import Any

import torch

from .capture import (
    CaptureError,
    GradientsRecorded,
    OnlyThisCall,
    Recorded,
    Signature,
    Surroundings,
    ThreadState,
    Tracer,
    Untraceable,
    device_of,
    recording,
    what_watches,
)
from .capture.trace import LeafScope
from .config import CompileConfig
from .lowering import lower
from .machine.forks import renew_in_children
from .programs.entries import Variant
from .programs.fusing import OverBudget, fuse
from .programs.on_device import OnDevice
from .programs.segmented import Unfinished
from .quality.sensitivity import Sensitivity
from .reporting.reasons import FAILED, NOT_FUSED, NOT_KEYED, NOT_TRACED, OUT_OF_MEMORY, PYTHON, reason_of, told
from .reporting.report import ModuleReport, SignatureReport
from .reporting.reporter import Reporter
from .runtime.any_store import Store
from .runtime.collector import collector_paused
from .runtime.graphs import DeviceGraphs, device_graphs
from .runtime.store import WeightStore
from .weights import WeightsChanged, WeightsElsewhere

log = logging.getLogger("fast_compile")
Forward = Callable[..., Any]
InParts = Callable[[torch.nn.Module, str, Callable[[], Any]], Any]


class Engine:
    """The compiled state of one module, without holding the module: the caller passes the original forward with each call.

    Thread-safe: what it has on a device is used under that device's lock. It keeps no tensor of the module's, only places below it.

    Attributes:
        config: asked anew at each call.
        report: what became of the calls, for who uses ``host`` (:mod:`.reporting.reasons`).
        reporter: writes that report; a host may set its ``observer`` and its ``may_say``.
        store: of the weights; a host says to it when a sampling begins.
        in_parts: runs a call of a forward that can't be fused as a whole (the module, why not, the call) where a host knows how to in parts.
        taken_in: the functions of others that are recorded with the module's own code.
        interruptions: the exceptions by which a host stops a call. They say nothing about the call, and always reach the host.
    """

    def __init__(self, name: str, config: CompileConfig, leaf_scope: LeafScope | None = None, store: Store | None = None, host: str = PYTHON) -> None:
        self.config = config
        self.report = ModuleReport(name, settings=config.settings(), host=host)
        self.reporter = Reporter(self.report)
        self.interruptions: tuple[type[BaseException], ...] = ()
        self.in_parts: InParts | None = None
        self._tracer = Tracer(leaf_scope)
        self.taken_in = self._tracer.taken_in
        self.store: Store = store or WeightStore()
        self._devices: dict[torch.device, OnDevice] = {}
        self._last: OnDevice | None = None  # where the last call ran
        self._sensitivity = Sensitivity()
        renew_in_children(self)

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a module starts uncompiled."""
        return None

    def configure(self, config: CompileConfig | None, name: str | None = None) -> None:
        """Take another config, another name for the report; None leaves what there is. Under another config all is traced anew."""
        if name is not None:
            self.report.name = name
        if config is not None and config != self.config:
            self.restore()
            self.reset()
            self.config = config
            self.report.settings = config.settings()

    def renew(self) -> None:
        """In a forked child: another thread may have been in the middle of a call."""
        self._devices, self._last = {}, None
        self.store.renew()
        self.report.signatures.clear()

    def call(
        self,
        module: torch.nn.Module,
        original: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        eager: Callable[[], Any] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """What ``original(*args, **kwargs)`` returns, by the fastest way that is known to be right.

        Args:
            module: the module whose forward ``original`` is; only used while it is called.
            original: the module's forward as it was.
            args: its arguments, as far as they may steer it.
            kwargs: its keyword arguments, likewise.
            eager: runs the forward with all that the host passed. None: ``original`` with these arguments.
            around: what the call brings along for code that runs live.
        """
        around = around or Surroundings(None, module)
        arguments = (lambda: Signature(args, kwargs, around.key)) if eager is None else None  # else the host has kept its own
        recorded = Recorded(original, lambda: original(*args, **kwargs), arguments, around)
        eager = eager or recorded.call
        if recording():  # inside another module's recorded call
            with self.store.plain():
                return eager()
        if watching := what_watches():
            return self.run_eager(watching, eager)
        try:
            signature = Signature(args, kwargs, around.key)
            if signature.objects and (reason := self._tracer.why_not(signature)):
                raise CaptureError(reason)
            device = device_of(module, signature.tensors, self.config.cpu_allowed())
        except CaptureError as error:
            if isinstance(error, GradientsRecorded):
                with self.store.lock:
                    self.store.leave_to_autograd()
                    self.report.adopted_bytes = self.store.adopted_bytes
            elif self.in_parts is not None and told(reason_of(error)).code == NOT_KEYED.code:  # its blocks may not look at that
                return self.in_parts(module, reason_of(error), eager)
            return self.run_eager(reason_of(error), eager)
        on, before, in_parts = self._on(device), ThreadState(), None
        with on.lock, self.taken_in.here(around):
            try:
                first_call = lambda: self._first_call(on, module, signature, recorded, eager, around)  # noqa: E731
                variant = on.variants.take(signature.key, signature.tensors)
                replayed = self._replay_ahead(variant, signature, device)
                if variant is not None and variant.guard is not None and (change := variant.guard.changed(module) or self._tracer.live.over(module)):
                    left, variant, replayed = variant, on.variants.another(signature.key, module, signature.tensors), None
                    if variant is None:
                        self.reporter.say(f"{change}: tracing again")
                        on.leave(signature.key, left, module, change)
                        if left.guard is not None and self._tracer.note_change(module, change, left.guard, left.others, left.sampling, left.tally.useless):
                            on.thrashing.clear()
                if variant is None:
                    if (reason := on.against_others(signature.key, module, around, self.taken_in) or on.waiting(signature)) is None:
                        return first_call()
                elif variant.graphed is None:
                    reason, in_parts = variant.reason, self.in_parts
                else:
                    try:
                        with self.store.pinned(device):
                            result = variant.graphed.run(signature.tensors, self.config, replayed, around)
                        on.served(signature.key, variant, self.taken_in)
                        return result
                    except self.interruptions:
                        raise
                    except torch.cuda.OutOfMemoryError as error:
                        self.reporter.ran_out_of_memory(error, self._make_room(on))
                        reason = OUT_OF_MEMORY()
                    except WeightsElsewhere as error:
                        variant.release()
                        reason = reason_of(error)
                    except OnlyThisCall as error:
                        reason = reason_of(error)
                    except Unfinished as error:
                        reason, eager = self._unfinished(on, signature.key, variant, error), self._tracer.live.finishing(module, around, eager)
                    except WeightsChanged as error:
                        self.reporter.say(f"{error}: tracing again")
                        on.forget(signature.key, variant, str(error))
                        if (reason := on.waiting(signature)) is None:
                            return first_call()
                    except Exception as error:
                        reason = FAILED(error=f"{type(error).__name__}: {error}")
                        self._give_up(variant, reason)
            except BaseException as error:
                before.put_back(error)
                raise
        return self.run_eager(reason, eager) if in_parts is None else in_parts(module, reason, eager)

    def _unfinished(self, on: OnDevice, key: Hashable, variant: Variant, error: Unfinished) -> str:
        """What becomes of a variant whose program couldn't finish a call, and why the original forward does."""
        if isinstance(error.__cause__, self.interruptions):
            raise error.__cause__
        if isinstance(error.__cause__, WeightsChanged):
            self.reporter.say(f"{error}, and tracing again")
            on.forget(key, variant, str(error))
        elif error.another:
            self.reporter.say(str(error))
            on.put_off(key, variant, str(error))
        elif isinstance(error.__cause__, torch.cuda.OutOfMemoryError):
            self.reporter.ran_out_of_memory(error.__cause__, self._make_room(on))
            return OUT_OF_MEMORY()
        elif error.ours:
            self._give_up(variant, FAILED(error=error))
        return reason_of(error)

    def _replay_ahead(self, variant: Variant | None, signature: Signature, device: torch.device) -> list[torch.Tensor] | None:
        """What the signature's graph makes of this call, before it is known whether that may be used; None where no graph may run.

        To look at everything that steers a forward takes up to 4 ms of the CPU's time (SDXL), in which the GPU would wait where the host has
        just waited for the GPU. The graph writes to memory of its own alone, and it reads no memory of others.
        """
        if variant is None or variant.graphed is None or not (variant.graphed.captured and variant.graphed.ahead):
            return None
        try:
            with self.store.pinned(device):
                return variant.graphed.replay(signature.tensors) if variant.graphed.readable() else None
        except self.interruptions:
            raise
        except Exception:  # found again, and said, where the call goes on as if this had not been tried
            log.debug("while replaying %s ahead", self.report.name, exc_info=True)
            return None

    def mentions(self, name: str) -> bool:
        """Whether code that ran in a recorded call mentions this name: it may look for an option of that name."""
        return name in self._tracer.words

    def run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        """Run the forward as it was, and say why once."""
        self.reporter.ran_eager(reason)
        with self.store.plain():
            return eager()

    @property
    def graphs(self) -> DeviceGraphs | None:
        """The graphs of the CUDA device that the last call ran on."""
        return self._last.graphs if self._last is not None else None

    @property
    def device(self) -> torch.device:
        """The device of the last call."""
        return self._last.device if self._last is not None else torch.device("cpu")

    @property
    def devices(self) -> list[OnDevice]:
        """What there is on each device that calls ran on."""
        return list(self._devices.values())

    def reset(self) -> None:
        """Forget all signatures and release their graphs. The next call traces again."""
        for on in self.devices:
            with on.lock:
                on.reset()
        self._tracer.forget()

    def release_graphs(self) -> None:
        """Release the graphs, keep the traces: a later call captures again."""
        for on in self.devices:
            with on.lock:
                on.variants.release()
                self._drop_copies()

    def forget_evicted(self) -> None:
        """Let go of graphs that others evicted, so that the report counts what is there. Waits for no call that is running."""
        for on in self.devices:
            on.release_evicted()

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and release the graphs that read them otherwise."""
        with ExitStack() as locks:
            for on in sorted(self.devices, key=lambda on: str(on.device)):  # in one order: two threads may do this
                locks.enter_context(on.lock)
                on.variants.release()
            self._lay_out_plainly()

    def lay_plain(self) -> None:
        """Let others find the weights with the strides that the module gave them, until the next call. Graphs stay as they are."""
        with self.store.lock:
            self.store.lay_plain()

    # -- a signature's first call ----------------------------------------------------------------------------------------

    @collector_paused()  # a trace is thousands of objects: the collector would walk them again and again, and find nothing
    def _first_call(
        self,
        on: OnDevice,
        module: torch.nn.Module,
        signature: Signature,
        recorded: Recorded,
        eager: Callable[[], Any],
        around: Surroundings,
    ) -> Any:
        self.reporter.announce("tracing")
        variant = Variant(SignatureReport(str(signature)), signature.layout)
        traced_now = partial(on.thrashing.traced, signature.layout, on.why_again(signature, self.config.max_signatures))
        keep = partial(on.variants.add, signature.key, variant, self.config.max_signatures)  # when it is known what it is, not before
        failure: str | None = None
        self.store.lay_plain()  # the host shall get what it always got, in the strides that it always had
        try:
            result, trace, variant.guard = self._tracer.record(module, signature, on.device, recorded)
        except CaptureError as error:  # the module's own, or one of recording: the plain call tells
            failure, passing = reason_of(error), error.passing or isinstance(error.__cause__, torch.cuda.OutOfMemoryError)
            variant.guard = error.guard
        if failure is not None:  # only here, where the failed call's tensors are gone
            result = self.run_eager(failure, self._tracer.live.finishing(module, around, eager))
            if not passing:  # the plain call went well: don't run this signature twice each time
                traced_now()
                self._give_up(variant, failure)
                keep()
            return result
        if isinstance(trace, Untraceable) and trace.passing:
            traced_now()
            if not trace.cut:
                on.backoff.failed(signature.key, trace.reason)
            self.reporter.ran_eager(trace.reason)
            return result
        self.report.calls["traced"] += 1
        variant.report.calls += 1
        if isinstance(trace, Untraceable):
            variant.tally = traced_now()
            self._give_up(variant, NOT_TRACED.because(trace.reason))
            keep()
            return result
        try:
            if variant.guard is not None and variant.guard.hooked:
                raise CaptureError(variant.guard.hooked)
            variant.others, variant.sampling, variant.report.recorded_in = tuple(trace.others), self.taken_in.sampling, list(trace.others.values())
            known = self.store, self.config, self._sensitivity, self.reporter
            fused = fuse(lower, on, variant, trace, signature, result, around, *known)
            on.backoff.succeeded(signature.key)
            variant.tally = traced_now()
            keep()
            return fused  # not eager's: the first picture of a seed has the bits of all later ones
        except self.interruptions:
            self._restore_unless_used()
            raise
        except (WeightsElsewhere, WeightsChanged, OverBudget) as error:
            self.reporter.ran_eager(on.try_later(signature.key, reason_of(error)))
        except torch.cuda.OutOfMemoryError as error:  # the result and the fused program's intermediates, beside one another
            self.reporter.ran_out_of_memory(error, self._make_room(on))
            self.reporter.ran_eager(on.try_later(signature.key, OUT_OF_MEMORY()))
        except Exception as error:
            log.debug("while compiling %s", self.report.name, exc_info=True)
            if self._tracer.not_fused(trace, reason_of(error), around):
                self.reporter.ran_eager(on.try_later(signature.key, reason_of(error)))
                return result
            traced_now()
            self._give_up(variant, NOT_FUSED.because(reason_of(error), error=type(error).__name__))
            keep()
        except BaseException:
            self._restore_unless_used()
            raise
        return result

    # -- changes and failures --------------------------------------------------------------------------------------------

    def _on(self, device: torch.device) -> OnDevice:
        """What there is on this device, which by that is the one of the last call."""
        on = self._devices.get(device)
        if on is None:
            on = self._devices.setdefault(device, OnDevice(device, device_graphs(device), self.report))
        if on is not self._last:
            for other in self.devices:  # the module may have moved: what graphs have elsewhere is of no use before it is back
                if other is not on:
                    other.release_unreadable()
            self._last, self.report.device = on, str(device)
            self.store.lock = on.lock
        return on

    def _give_up(self, variant: Variant, reason: str) -> None:
        variant.release()
        variant.reason = variant.report.eager_because = reason
        variant.graphed = None
        self._restore_unless_used()
        self.reporter.gave_up(reason)

    def _restore_unless_used(self) -> None:
        """Where nothing needs the weights laid out anew, eager gives the very bits that it gave before."""
        if not any(on.variants.programs() for on in self.devices):
            self._lay_out_plainly()

    def _make_room(self, on: OnDevice) -> int:
        """Give back what a device's graphs hold, and what lies beside weights. Returns the graphs' bytes."""
        self._drop_copies()
        return on.make_room()

    def _drop_copies(self) -> None:
        """Give back what lies beside weights. A later call makes it anew."""
        self.store.copies.drop()
        self.report.copied_bytes = 0

    def _lay_out_plainly(self) -> None:
        self.store.restore()
        self.report.adopted_bytes = self.report.copied_bytes = 0
