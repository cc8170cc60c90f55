"""Compiles one module: what happens at each call of it.

The first call of a signature is recorded while it runs and rewritten; the fused program's result is compared with the call's own and,
where they agree, returned in its place, so that the same inputs give the same bits from the first call on.
From then on the program runs, at first kernel by kernel, from ``capture_after`` on as a CUDA graph. Whatever goes wrong on the way, the
original forward runs instead, and the reason is logged once and counted in the report.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch
from torch.utils import _pytree

from .capture import CaptureError, Signature, Trace, Tracer, Untraceable, autocast_off, device_of, difference, recording
from .capture.trace import LeafScope
from .config import CompileConfig
from .graphed import GraphedProgram
from .lowering import lower
from .report import ModuleReport, SignatureReport
from .reporter import OUT_OF_MEMORY, Reporter
from .runtime.backoff import Backoff
from .runtime.collector import collector_paused
from .runtime.graphs import DeviceGraphs, device_graphs
from .runtime.store import Store, WeightsChanged, WeightsElsewhere, WeightStore
from .runtime.thrashing import Thrashing
from .variants import Variant, Variants

log = logging.getLogger("fast_compile")
Forward = Callable[..., Any]


class Engine:
    """The compiled state of one module, without holding the module: the caller passes the original forward with each call.

    Thread-safe. It keeps no tensor of the module's, only places below it.

    Attributes:
        config: asked anew at each call.
        report: what became of the calls.
        reporter: writes that report; a host may set its ``observer`` and its ``may_say``.
    """

    def __init__(
        self,
        name: str,
        config: CompileConfig,
        leaf_scope: LeafScope | None = None,
        store: Store | None = None,
    ) -> None:
        self.config = config
        self.report = ModuleReport(name, settings={key: getattr(config, key) for key in CompileConfig.names()})
        self.reporter = Reporter(self.report)
        self._tracer = Tracer(leaf_scope)
        self._store: Store = store or WeightStore()
        self._variants = Variants(self.report)
        self._lock = threading.RLock()
        self._graphs: DeviceGraphs | None = None
        self._on = torch.device("cpu")
        self._backoff = Backoff()
        self._thrashing = Thrashing()
        self._change = ""  # what made an end of the traces before

    def __deepcopy__(self, memo: Any) -> None:
        """A copy of a module starts uncompiled."""
        return None

    def call(
        self,
        module: torch.nn.Module,
        original: Forward,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        eager: Callable[[], Any] | None = None,
    ) -> Any:
        """What ``original(*args, **kwargs)`` returns, by the fastest way that is known to be right.

        Args:
            module: the module whose forward ``original`` is; only used while it is called.
            original: the module's forward as it was.
            args: its arguments, as far as they may steer it.
            kwargs: its keyword arguments, likewise.
            eager: runs the forward with all that the host passed. None: ``original`` with these arguments.
        """
        eager = eager or (lambda: original(*args, **kwargs))
        if recording():  # inside another module's recorded call
            return eager()
        try:
            signature = Signature(args, kwargs)
            device = device_of(module, signature.tensors, self.config.cpu_allowed())
        except CaptureError as error:
            return self.run_eager(str(error), eager)
        graphs = device_graphs(device)
        with graphs.lock if graphs else self._lock:
            self._move_to(graphs, device)
            first_call = lambda: self._first_call(module, signature, device, original, lambda: original(*args, **kwargs), eager)  # noqa: E731
            variant = self._variants.take(signature.key)
            replayed = self._replay_ahead(variant, signature, device)
            if variant is not None and variant.guard is not None and (change := variant.guard.changed(module)):
                self._trace_again(signature.key, change)
                variant = None
            if variant is None:
                waiting = self._waiting(signature)
                if waiting is None:
                    return first_call()
                reason = waiting
            elif variant.graphed is None:
                reason = variant.reason
            else:
                try:
                    with self._store.pinned(device):
                        result = variant.graphed.run(signature.tensors, self.config, replayed)
                    variant.tally.served += 1
                    return result
                except torch.cuda.OutOfMemoryError as error:
                    self._out_of_memory(error)
                    reason = OUT_OF_MEMORY
                except WeightsElsewhere as error:
                    variant.release()
                    reason = str(error)
                except WeightsChanged as error:
                    self._trace_again(signature.key, str(error))
                    waiting = self._waiting(signature)
                    if waiting is None:
                        return first_call()
                    reason = waiting
                except Exception as error:
                    reason = f"the fused forward failed: {type(error).__name__}: {error}"
                    self._give_up(variant, reason)
        return self.run_eager(reason, eager)

    def _replay_ahead(self, variant: Variant | None, signature: Signature, device: torch.device) -> list[torch.Tensor] | None:
        """What the signature's graph makes of this call, before it is known whether that may be used; None where no graph may run.

        To look at everything that steers a forward takes up to 4 ms of the CPU's time (SDXL), in which the GPU would wait where the host has
        just waited for the GPU. The graph writes to memory of its own alone, and it reads no memory of others.
        """
        if variant is None or variant.graphed is None or not variant.graphed.captured:
            return None
        try:
            with self._store.pinned(device):
                return variant.graphed.replay(signature.tensors) if variant.graphed.readable() else None
        except Exception:  # found again, and said, where the call goes on as if this had not been tried
            log.debug("while replaying %s ahead", self.report.name, exc_info=True)
            return None

    def run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        """Run the forward as it was, and say why once."""
        self.reporter.ran_eager(reason)
        return eager()

    @property
    def graphs(self) -> DeviceGraphs | None:
        """The graphs of the CUDA device that it runs on."""
        return self._graphs

    @property
    def device(self) -> torch.device:
        """The device of the last call."""
        return self._on

    def reset(self) -> None:
        """Forget all signatures and release their graphs. The next call traces again."""
        self._variants.clear()
        self._backoff.clear()
        self._thrashing.clear()

    def release_graphs(self) -> None:
        """Release the graphs, keep the traces: a later call captures again."""
        with self._graphs.lock if self._graphs else self._lock:
            self._variants.release()

    def forget_evicted(self) -> None:
        """Let go of graphs that others evicted, so that the report counts what is there."""
        with self._graphs.lock if self._graphs else self._lock:
            self._variants.release_evicted()

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and release the graphs that read them otherwise."""
        with self._graphs.lock if self._graphs else self._lock:
            self.release_graphs()
            self._store.restore()
            self.report.adopted_bytes = 0

    # -- a signature's first call ----------------------------------------------------------------------------------------

    @collector_paused()  # a trace is thousands of objects: the collector would walk them again and again, and find nothing
    def _first_call(
        self,
        module: torch.nn.Module,
        signature: Signature,
        device: torch.device,
        original: Forward,
        traced: Callable[[], Any],
        eager: Callable[[], Any],
    ) -> Any:
        self.reporter.announce("tracing")
        variant = Variant(SignatureReport(str(signature)), signature.layout)
        traced_now = partial(self._thrashing.traced, signature.layout, self._why_again(signature))
        adopted = self.report.adopted_bytes > 0
        failure: str | None = None
        try:
            result, trace, variant.guard = self._tracer.record(module, signature, device, traced, original)
        except CaptureError as error:  # the module's own, or one of recording: the plain call tells
            failure, passing = str(error), isinstance(error.__cause__, torch.cuda.OutOfMemoryError)
            variant.guard = error.guard
        if failure is not None:  # only here, where the failed call's tensors are gone
            result = self.run_eager(failure, eager)
            if not passing:  # the plain call went well: don't run this signature twice each time
                self._variants.add(signature.key, variant, self.config.max_signatures)
                traced_now()
                self._give_up(variant, failure)
            return result
        if isinstance(trace, Untraceable) and trace.passing:
            traced_now()
            self._backoff.failed(signature.key, trace.reason)
            self.reporter.ran_eager(trace.reason)
            return result
        self._variants.add(signature.key, variant, self.config.max_signatures)
        self.report.calls["traced"] += 1
        variant.report.calls += 1
        if isinstance(trace, Untraceable):
            traced_now()
            self._give_up(variant, f"it can't be traced: {trace.reason}")
            return result
        try:
            if variant.guard is not None and variant.guard.hooked:
                raise CaptureError(variant.guard.hooked)
            if adopted:  # its weights are channels_last by now, and so may be its result: the host shall get what it always got
                result = _contiguous(result)
            fused = self._fuse(variant, trace, signature, device, result, adopted)
            self._backoff.succeeded(signature.key)
            variant.tally = traced_now()
            return fused  # not eager's: the first picture of a seed has the bits of all later ones
        except WeightsElsewhere as error:
            self._try_later(signature.key, str(error))
        except torch.cuda.OutOfMemoryError as error:  # the result and the fused program's intermediates, beside one another
            self._out_of_memory(error)
            self._try_later(signature.key, OUT_OF_MEMORY)
        except Exception as error:
            log.debug("while compiling %s", self.report.name, exc_info=True)
            traced_now()
            self._give_up(variant, f"it can't be fused: {type(error).__name__}: {error}")
        return result

    def _fuse(self, variant: Variant, trace: Trace, signature: Signature, device: torch.device, recorded: Any, plain_layouts: bool) -> Any:
        """Make the variant's program and prove it. Returns what it computes in the place of the ``recorded`` result."""
        backend = self._graphs.backend if self._graphs else None
        progress = partial(self.reporter.announce, "tracing")
        with autocast_off():  # constants are folded and kernels timed as they will run
            program = lower(trace, device, self._store, self.config, backend, variant.report, plain_layouts, progress)
        variant.graphed = GraphedProgram(program, trace.outputs, self._store, device, self._graphs, variant.report, self.reporter)
        variant.report.not_captured_because = program.capturable if self.config.cuda_graphs else "turned off in the settings"
        with self._store.pinned(device):
            return variant.graphed.prove(signature.tensors, recorded, trace.computed_in, self.config.tolerance)

    # -- changes and failures --------------------------------------------------------------------------------------------

    def _move_to(self, graphs: DeviceGraphs | None, device: torch.device) -> None:
        if str(device) != self.report.device:
            if self.report.device:
                self.reset()
            self._graphs, self._on, self.report.device = graphs, device, str(device)

    def _waiting(self, signature: Signature) -> str | None:
        """Why a call without a trace isn't traced now; None where it is."""
        return self._backoff.reason(signature.key) or self._thrashing.reason(signature.layout)

    def _trace_again(self, key: Hashable, change: str) -> None:
        """What was found out about this signature holds no more. Others are looked at when they are called."""
        self.reporter.say(f"{change}: tracing again")
        self._change = change
        self._variants.remove(key)
        self._backoff.succeeded(key)

    def _why_again(self, signature: Signature) -> str:
        """What is different from the calls that were traced before, should that happen again and again."""
        last = self._variants.last(signature.layout)
        if last is not None:
            different = f"{difference(signature.key, last)} is another"
        elif self._variants.full(self.config.max_signatures):
            different = f"more than {self.config.max_signatures} signatures take turns"
        else:
            different = self._change
        return f"it would be traced at nearly every call: {different}"

    def _try_later(self, key: Hashable, reason: str) -> None:
        self._variants.remove(key)
        self._backoff.failed(key, reason)
        self.reporter.ran_eager(reason)

    def _out_of_memory(self, error: Exception) -> None:
        freed = self._graphs.release_all() if self._graphs else 0
        self._variants.release()
        self.reporter.ran_out_of_memory(error, freed)

    def _give_up(self, variant: Variant, reason: str) -> None:
        variant.release()
        variant.reason = variant.report.eager_because = reason
        variant.graphed = None
        if not self._variants.programs():
            self._store.restore()  # nothing needs the weights laid out anew: eager gives the very bits that it gave before
            self.report.adopted_bytes = 0
        self.reporter.gave_up(reason)


def _contiguous(result: Any) -> Any:
    """``result`` with every tensor contiguous."""
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, result)
