"""Compiles one module: what happens at each call of it.

The first call of a signature is recorded while it runs and rewritten; the fused program's result is compared with the call's own and,
where they agree, returned in its place, so that the same inputs give the same bits from the first call on.
From then on the program runs, at first kernel by kernel, from ``capture_after`` on as a CUDA graph. Whatever goes wrong on the way, the
original forward runs instead, and the reason is logged once and counted in the report.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any

import torch
from torch.utils import _pytree

from .advice import advice
from .capture import CaptureError, Signature, StructureGuard, Untraceable, autocast_off, record, recording
from .capture.trace import LeafScope, OutputSpec
from .config import CompileConfig
from .lowering import lower
from .proof import distance_to_eager
from .report import ModuleReport, SignatureReport
from .runtime.backoff import Backoff
from .runtime.collector import collector_paused
from .runtime.graphs import Captured, DeviceGraphs, device_graphs
from .runtime.program import Program
from .runtime.store import Bound, Store, WeightsElsewhere, WeightsReshaped, WeightStore

log = logging.getLogger("fast_compile")
Forward = Callable[..., Any]
_OUT_OF_MEMORY = "out of memory"


class _Variant:
    """One signature of one module. ``reason`` set: it runs eager for good."""

    def __init__(self, report: SignatureReport) -> None:
        self.report = report
        self.reason: str | None = None
        self.program: Program | None = None
        self.shapes: list[torch.Size] = []  # of the program's weights
        self.outputs: OutputSpec | None = None
        self.bound: Bound | None = None
        self.captured: Captured | None = None
        self.capture_failed = False


class Engine:
    """The compiled state of one module, without holding the module: the caller passes the original forward with each call.

    Thread-safe. It keeps no tensor of the module's, only places below it.

    Attributes:
        observer: told ``"tracing"`` and ``"capturing"`` before these begin, and of the first how much is done, from 0 to 1. It is called
            from several threads and must not raise.
        may_say: asked before a line is logged that isn't a warning. False: not now, and not lost: it is said when it comes up again.
    """

    def __init__(
        self,
        module: torch.nn.Module,
        name: str,
        config: CompileConfig,
        leaf_scope: LeafScope | None = None,
        store: Store | None = None,
    ) -> None:
        self.config = config
        self.report = ModuleReport(name, settings={key: getattr(config, key) for key in CompileConfig.names()})
        self.observer: Callable[[str, float], None] | None = None
        self.may_say: Callable[[], bool] = lambda: True
        self._leaf_scope = leaf_scope
        self._store: Store = store or WeightStore()
        self._guard: StructureGuard | None = None
        self._changing: set[Hashable] = set()  # signatures whose recorded call changed the module
        self._variants: OrderedDict[Hashable, _Variant] = OrderedDict()
        self._lock = threading.RLock()
        self._graphs: DeviceGraphs | None = None
        self._on = torch.device("cpu")
        self._backoff = Backoff()
        self._uncaptured = Backoff()  # by variant: memory ran out at its capture
        self._said: set[str] = set()

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
            device = self._device(module, signature.tensors)
        except CaptureError as error:
            return self.run_eager(str(error), eager)
        graphs = device_graphs(device)
        with graphs.lock if graphs else self._lock:
            self._move_to(graphs, device)
            if self._guard is not None and (change := self._guard.changed()):
                self._trace_again(change)
            variant = self._variants.get(signature.key)
            waiting = self._backoff.reason(signature.key) if variant is None else None
            first_call = lambda: self._first_call(module, signature, device, lambda: original(*args, **kwargs), eager)  # noqa: E731
            if variant is None and waiting is None:
                return first_call()
            if variant is None:
                reason = str(waiting)
            elif variant.reason is None:
                self._variants.move_to_end(signature.key)
                try:
                    with self._store.pinned(device):
                        return self._run(variant, signature.tensors)
                except torch.cuda.OutOfMemoryError as error:
                    self._out_of_memory(error)
                    reason = _OUT_OF_MEMORY
                except WeightsElsewhere as error:
                    self._release(variant)
                    reason = str(error)
                except WeightsReshaped as error:
                    self._trace_again(str(error))
                    return first_call()
                except Exception as error:
                    reason = self._give_up(variant, f"the fused forward failed: {type(error).__name__}: {error}")
            else:
                reason = variant.reason
        return self.run_eager(reason, eager)

    @property
    def graphs(self) -> DeviceGraphs | None:
        """The graphs of the CUDA device that it runs on."""
        return self._graphs

    @property
    def device(self) -> torch.device:
        """The device of the last call."""
        return self._on

    def run_eager(self, reason: str, eager: Callable[[], Any]) -> Any:
        """Run the forward as it was, and say why once."""
        self._count_eager(reason)
        return eager()

    def reset(self) -> None:
        """Forget all signatures and release their graphs. The next call traces again."""
        for variant in self._variants.values():
            self._release(variant)
        self._variants.clear()
        self.report.signatures.clear()
        self._backoff.clear()
        self._uncaptured.clear()
        self._guard = None

    def release_graphs(self) -> None:
        """Release the graphs, keep the traces: a later call captures again."""
        with self._graphs.lock if self._graphs else self._lock:
            for variant in self._variants.values():
                self._release(variant)

    def forget_evicted(self) -> None:
        """Let go of graphs that others evicted, so that the report counts what is there."""
        with self._graphs.lock if self._graphs else self._lock:
            for variant in self._variants.values():
                if variant.captured is not None and not variant.captured.alive:
                    self._release(variant)

    def restore(self) -> None:
        """Give the module its weights back as they were laid out, and release the graphs that read them otherwise."""
        with self._graphs.lock if self._graphs else self._lock:
            self.release_graphs()
            self._store.restore()
            self.report.adopted_bytes = 0

    # -- one call --------------------------------------------------------------------------------------------------------

    def _device(self, module: torch.nn.Module, tensors: list[torch.Tensor]) -> torch.device:
        """The device that the call runs on.

        Raises:
            CaptureError: this call is not one to compile.
        """
        if not tensors:
            raise CaptureError("there is no tensor among the arguments")
        device = next((tensor.device for tensor in tensors if tensor.device.type == "cuda"), tensors[0].device)
        if device.type != "cuda" and not (device.type == "cpu" and self.config.cpu_allowed()):
            raise CaptureError(f"the inputs are on {device.type}, which isn't a CUDA device")
        if any(tensor.numel() == 0 for tensor in tensors):
            raise CaptureError("an input is empty")
        if torch.is_grad_enabled() and (any(t.requires_grad for t in tensors) or any(p.requires_grad for p in module.parameters())):
            raise CaptureError("gradients are being recorded: call it under torch.no_grad() or torch.inference_mode()")
        if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
            raise CaptureError("the caller is capturing a CUDA graph of its own")
        return device

    @collector_paused()  # a trace is thousands of objects: the collector would walk them again and again, and find nothing
    def _first_call(
        self, module: torch.nn.Module, signature: Signature, device: torch.device, traced: Callable[[], Any], eager: Callable[[], Any]
    ) -> Any:
        self._observe("tracing")
        report = SignatureReport(_describe(signature))
        guard = self._guard or StructureGuard(module)
        adopted = self.report.adopted_bytes > 0
        failure: str | None = None
        try:
            result, trace = record(traced, signature.tensors, module, device, self._leaf_scope)
        except CaptureError as error:  # the module's own, or one of recording: the plain call tells
            failure, passing = str(error), isinstance(error.__cause__, torch.cuda.OutOfMemoryError)
        if failure is not None:  # only here, where the failed call's tensors are gone
            result = self.run_eager(failure, eager)
            if not passing:  # the plain call went well: don't run this signature twice each time
                self._remember(signature.key, variant := _Variant(report))
                self._give_up(variant, failure)
            return result
        if change := guard.changed():  # a counter, a cache: a replay would not change it again
            trace = Untraceable(f"the call itself changes the module: {change}", passing=signature.key not in self._changing)
            self._changing.add(signature.key)
        if isinstance(trace, Untraceable) and trace.passing:
            self._backoff.failed(signature.key, trace.reason)
            self._count_eager(trace.reason)
            return result
        variant = _Variant(report)
        self._remember(signature.key, variant)
        self.report.calls["traced"] += 1
        report.calls += 1
        self._guard = guard if change is None else None
        if isinstance(trace, Untraceable):
            self._give_up(variant, f"it can't be traced: {trace.reason}")
            return result
        try:
            if guard.hooked:
                raise CaptureError(guard.hooked)
            backend = self._graphs.backend if self._graphs else None
            if adopted:  # its weights are channels_last by now, and so may be its result: the host shall get what it always got
                result = _contiguous(result)
            with autocast_off():  # constants are folded and kernels timed as they will run
                variant.program = lower(trace, device, self._store, self.config, backend, report, adopted, self._traced_so_far)
            variant.outputs = trace.outputs
            report.not_captured_because = variant.program.capturable if self.config.cuda_graphs else "turned off in the settings"
            with self._store.pinned(device):
                fused = self._prove(variant, signature.tensors, result, trace.computed_in)
            self._backoff.succeeded(signature.key)
            return fused  # not eager's: the first picture of a seed has the bits of all later ones
        except WeightsElsewhere as error:
            self._try_later(signature.key, str(error))
        except torch.cuda.OutOfMemoryError as error:  # the result and the fused program's intermediates, beside one another
            self._out_of_memory(error)
            self._try_later(signature.key, _OUT_OF_MEMORY)
        except Exception as error:
            log.debug("while compiling %s", self.report.name, exc_info=True)
            self._give_up(variant, f"it can't be fused: {type(error).__name__}: {error}")
        return result

    def _prove(self, variant: _Variant, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype]) -> Any:
        """Run the program on the very inputs that were recorded, compare, and build the call's result from it."""
        assert variant.program is not None and variant.outputs is not None
        expected = [leaf for leaf in _pytree.tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        weights = self._store.tensors(variant.program.sources, self._on)
        variant.shapes = [weight.shape for weight in weights]
        self.report.adopted_bytes = self._store.adopted_bytes
        results = variant.program(inputs, weights)
        variant.report.distance = distance_to_eager(results, expected, self.config.tolerance, computed_in)
        return variant.outputs.build(variant.program.deliver(results))

    def _run(self, variant: _Variant, inputs: list[torch.Tensor]) -> Any:
        program = variant.program
        assert program is not None and variant.outputs is not None
        variant.report.calls += 1
        if variant.captured is None or not self._still_good(variant):
            if self._wants_graph(variant):
                self._capture(variant, inputs)
            else:
                self._release(variant)
        if variant.captured is not None and self._graphs is not None:
            results = self._graphs.replay(variant.captured, inputs, program.deliver)
            self.report.calls["replayed"] += 1
        else:
            results = program.deliver(program(inputs, self._weights(variant)))
            self.report.calls["fused"] += 1
        return variant.outputs.build(results)

    def _weights(self, variant: _Variant) -> list[torch.Tensor]:
        """The weights of its program, laid out for it.

        Raises:
            WeightsReshaped: they aren't of the shapes that it was made for.
        """
        assert variant.program is not None
        weights = self._store.tensors(variant.program.sources, self._on)
        for source, weight, shape in zip(variant.program.sources, weights, variant.shapes, strict=True):
            if weight.shape != shape:
                raise WeightsReshaped(f"the weight {source} is {list(weight.shape)} now, it was {list(shape)}")
        return weights

    # -- graphs ----------------------------------------------------------------------------------------------------------

    def _wants_graph(self, variant: _Variant) -> bool:
        assert variant.program is not None
        return (
            self.config.cuda_graphs
            and self._graphs is not None
            and variant.program.capturable is None
            and not variant.capture_failed
            and self._uncaptured.reason(variant) is None
            and variant.report.calls >= self.config.capture_after
        )

    def _still_good(self, variant: _Variant) -> bool:
        """Whether the graph is there and each weight lies where the graph reads it."""
        assert variant.captured is not None and variant.bound is not None and variant.program is not None
        if not variant.captured.alive:
            return False
        if variant.bound.valid():
            return True
        weights = self._weights(variant)  # lays replaced weights out anew
        bound = self._store.bind(variant.program.sources, weights)
        same = bound.pointers == variant.bound.pointers
        variant.bound = bound
        return same

    def _capture(self, variant: _Variant, inputs: list[torch.Tensor]) -> None:
        """Capture a graph, in the place of one that reads weights where they no longer are."""
        assert variant.program is not None and self._graphs is not None
        self._observe("capturing")
        program, start = variant.program, time.perf_counter()
        weights = self._weights(variant)
        bound = self._store.bind(program.sources, weights)
        try:
            run = lambda static: program(static, weights)  # noqa: E731
            variant.captured = self._graphs.capture(inputs, run, self.config.graph_budget_bytes, owner=self, instead_of=variant.captured)
        except torch.cuda.OutOfMemoryError as error:  # every other graph is released by now
            self._release(variant)
            self._uncaptured.failed(variant, variant.report.inputs)
            self._say(f"runs without a CUDA graph for now, memory ran out while it was captured: {error}", logging.WARNING)
            return
        except Exception as error:
            self._release(variant)
            variant.capture_failed = True
            variant.report.not_captured_because = f"capturing failed: {error}"
            self._say(f"runs without a CUDA graph: {variant.report.not_captured_because}", logging.WARNING)
            return
        variant.bound = bound
        variant.report.captures += 1
        variant.report.graph_bytes = variant.captured.bytes
        variant.report.capture_s += time.perf_counter() - start

    def _release(self, variant: _Variant) -> None:
        if variant.captured is not None and self._graphs is not None:
            self._graphs.release(variant.captured)
        variant.captured = variant.bound = None
        variant.report.graph_bytes = 0

    # -- bookkeeping -----------------------------------------------------------------------------------------------------

    def _trace_again(self, change: str) -> None:
        self._say(f"{change}: tracing again")
        self.reset()

    def _move_to(self, graphs: DeviceGraphs | None, device: torch.device) -> None:
        if str(device) != self.report.device:
            if self.report.device:
                self.reset()
            self._graphs, self._on, self.report.device = graphs, device, str(device)

    def _remember(self, key: Hashable, variant: _Variant) -> None:
        self._variants[key] = variant
        self.report.signatures.append(variant.report)
        while len(self._variants) > self.config.max_signatures:
            oldest = next(iter(self._variants))
            self._release(self._variants[oldest])
            self._forget(oldest)

    def _forget(self, key: Hashable) -> None:
        self.report.signatures.remove(self._variants.pop(key).report)

    def _try_later(self, key: Hashable, reason: str) -> None:
        self._forget(key)
        self._backoff.failed(key, reason)
        self._count_eager(reason)

    def _out_of_memory(self, error: Exception) -> None:
        freed = self._graphs.release_all() if self._graphs else 0
        for variant in self._variants.values():
            self._release(variant)
        self._said.add(_runs_as_it_was(_OUT_OF_MEMORY))  # this line says it
        words = f"ran out of memory: {freed / 2**20:.0f} MB of graphs were released, and the call runs as it was"
        self._say(f"{words}; {advice(_OUT_OF_MEMORY)} ({error})", logging.WARNING)

    def _give_up(self, variant: _Variant, reason: str) -> str:
        self._release(variant)
        variant.reason = variant.report.eager_because = reason
        variant.program = None
        if all(other.program is None for other in self._variants.values()):
            self._store.restore()  # nothing needs the weights laid out anew: eager gives the very bits that it gave before
            self.report.adopted_bytes = 0
        self._say(_runs_as_it_was(reason), logging.WARNING)
        return reason

    def _count_eager(self, reason: str) -> None:
        self.report.calls["eager"] += 1
        self.report.reasons[reason] += 1
        self._say(_runs_as_it_was(reason))

    def _observe(self, what: str, done: float = 0.0) -> None:
        if self.observer is not None:
            self.observer(what, done)

    def _traced_so_far(self, done: float) -> None:
        self._observe("tracing", done)

    def _say(self, message: str, level: int = logging.INFO) -> None:
        if message not in self._said and (self.may_say() or level > logging.INFO):
            self._said.add(message)
            log.log(level, "Fast Compile: %s %s", self.report.name, message)


def _runs_as_it_was(reason: str) -> str:
    return f"runs as it was, unaccelerated, because {reason}. What you can do: {advice(reason)}."


def _describe(signature: Signature) -> str:
    shown = [f"{str(tensor.dtype)[6:]}{list(tensor.shape)}" for tensor in signature.tensors[:6]]
    more = ["..."] if len(signature.tensors) > 6 else []
    return ", ".join([*shown, *more, *(f"autocast to {str(dtype)[6:]} on {kind}" for kind, dtype in signature.autocast)])


def _contiguous(result: Any) -> Any:
    """``result`` with every tensor contiguous."""
    return _pytree.tree_map_only(torch.Tensor, torch.Tensor.contiguous, result)
