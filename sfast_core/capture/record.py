"""Runs one call of a module and records it."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from ..reporting.reason import reason_of
from ..reporting.reasons.memory import OUT_OF_MEMORY
from ..reporting.reasons.records import FAILED_RECORDING, NOT_READ
from ..weights import WeightTable
from .arrays import arrays_seen
from .as_written import as_written
from .errors import CaptureError
from .fast_path import PADDED, has_fast_way, tells_ways_apart
from .guards import Guard, NotWatched, Reader, ReadSet, Unwatched, watched
from .guards.given import is_ours
from .guards.put_back import put_back, stays
from .leaf import run_as_they_are
from .live import Surroundings
from .live.functions import InTable, found_as_live
from .live.modules import LiveModules, modules_at_work
from .live.recording import out_of_sight
from .outliers import REASON, looks_for_outliers
from .random_state import RandomState, draws
from .recorder import Recorder
from .routed import Routed, is_mixture
from .thread_state import raised_here
from .torch_state import torch_state
from .trace import RecordedCall, Trace, Untraceable
from .unseen import unseen_as_one

_RECORDERS = Recorder.__torch_function__.__code__.co_filename
LeafScope = Callable[[Recorder], AbstractContextManager[Any]]


def record(
    call: Callable[[], Any],
    inputs: list[torch.Tensor],
    root: torch.nn.Module,
    device: torch.device,
    reads: ReadSet,
    leaf_scope: LeafScope | None = None,
    closed: Collection[type] = (),
    live: LiveModules | None = None,
    around: Surroundings | None = None,
    returns_each: bool = False,
    writes_arguments: Callable[[], bool] = lambda: False,
) -> tuple[Any, Trace | Untraceable, Guard | None]:
    """Run ``call()`` once and record it.

    Args:
        call: runs ``root``'s original forward on ``inputs``.
        inputs: the signature's tensors; they become the graph's first placeholders.
        root: where weights are looked up.
        device: whose random numbers must not move.
        reads: collects what the call reads besides its arguments.
        leaf_scope: a host's context around the call, for leaves that resolve their weights in a way of their own.
        closed: classes of tensors that can't be recorded by their parts. Layers with such weights run as they are.
        live: modules that run live.
        around: what the call brings along for these.
        returns_each: the graph is to return each tensor of the result, whatever it is.
        writes_arguments: tells whether the call has changed its arguments, or PyTorch's settings.

    Returns:
        the call's own result, a :class:`Trace` or why there is none, and what tells whether that still holds; None
        where that couldn't be found out.

    Raises:
        CaptureError: a torch function failed; its error is the cause. It may be that only the recording made it fail.
        Exception: the module's own code raised this (a host's way to stop it, say).
    """
    start = time.perf_counter()
    settings = torch_state()
    random = RandomState(device)
    recorder = Recorder(inputs, WeightTable(root))
    recorder.random, recorder.read_set, recorder.device = random, reads, device
    if live is not None:
        recorder.left_out = live.left_out
    around = around or Surroundings(None, root)
    below = list(root.modules())  # once, and while nobody is told of each step
    modules, functions = _as_they_are(recorder, below, closed, live, around)
    scope = leaf_scope(recorder) if leaf_scope else nullcontext()
    # No ExitStack: an interruption between its entering a context and its noting that would leave the context entered.
    unseen = unseen_as_one(recorder, list(around.functions.values()))
    with (
        scope,
        as_written(),
        modules,
        functions,
        unseen,
        arrays_seen(recorder.from_array),
        _watching(reads, recorder),
        recorder,
    ):
        try:
            result = call()
        except Exception as error:
            # before Python 3.11 each event that a watch is told of leaves the variables of its frame in that frame
            recorder.watch.pause()
            if id(error) == recorder.raised or raised_here(error):
                if _is_its_own(error, recorder, reads, writes_arguments):
                    raise
                put_back(reads)
                recorder.input_writes.put_back(inputs)
                # in no variable: this frame would hold it, and it this frame
                raise _failed(error, _kinds(recorder, None)) from error
            raise
    try:
        recorded = RecordedCall(result, inputs, recorder, reads, around, returns_each)
        found, guard = recorded.trace(random, settings, start)
    except Exception as error:  # the call went well all the same
        return result, Untraceable(NOT_READ(error=f"{type(error).__name__}: {error}"), passing=True), None
    if isinstance(found, Untraceable) and not found.others:
        found = replace(found, others=_kinds(recorder, reads.refused_in))
    guard.decisions = recorder.decisions or None
    return recorded.result, found, guard


def _as_they_are(
    recorder: Recorder,
    below: list[torch.nn.Module],
    closed: Collection[type],
    live: LiveModules | None,
    around: Surroundings,
) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    """Contexts in which modules (``below``: all, the root first) and functions run as they are, unrecorded."""
    root = below[0]
    cut = live.of(root) if live else {}
    routed = Routed(recorder, out_of_sight)
    apart = [module for module in below if id(module) in cut]
    mixtures = [module for module in below if id(module) not in cut and is_mixture(module)]
    with_ways = [module for module in below if id(module) not in cut and has_fast_way(module)]
    asking = [module for module in below if looks_for_outliers(module) and module is not root]
    functions = live.functions() if live else []

    def run(
        module: torch.nn.Module, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if id(module) in cut:
            return recorder.call_live_code(cut[id(module)], around, function, args, kwargs)
        if module in mixtures:
            return routed(module, function, args, kwargs)
        if module in with_ways:
            if recorder.in_leaf or not tells_ways_apart(module, args, kwargs):
                return function(*args, **kwargs)
            reads = PADDED if isinstance(module, torch.nn.TransformerEncoder) else ""
            return recorder.run_leaf(module, partial(_unseen, recorder, function), args, kwargs, reads)
        return recorder.run_leaf(module, function, args, kwargs, REASON if looks_for_outliers(module) else "")

    def run_function(which: InTable, *call: Any) -> Any:
        return recorder.call_live_code(which, around, *call)

    assert recorder.read_set is not None
    recorder.read_set.run_live(
        [*apart, *asking], [*(each.function for each in functions), *(module.state for module in asking)]
    )
    return (
        run_as_they_are([*apart, *asking, *mixtures, *with_ways, *recorder.table.closed(closed)], run),
        found_as_live(functions, run_function),
    )


def _unseen(recorder: Recorder, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    with out_of_sight(recorder):
        return function(*args, **kwargs)


def _is_its_own(error: Exception, recorder: Recorder, reads: ReadSet, writes_arguments: Callable[[], bool]) -> bool:
    """Whether a torch function raised this that the module's code called, when there was no recording any more, or only
    one that would have come to nothing: the call has drawn random numbers, say, or changed what can't be put back. It
    isn't made twice then.
    """
    if id(error) != recorder.raised or not recorder.plainly or isinstance(error, torch.cuda.OutOfMemoryError):
        return False
    random = recorder.random
    if not (recorder.failure or reads.refused or reads.said.heard()):
        with out_of_sight(recorder):
            drew = random is not None and (random.moved() or random.foreign_moved())
            if not (drew or writes_arguments() or stays(reads)):
                return False
    last, step, between = None, error.__traceback__, False
    while step is not None:
        path = step.tb_frame.f_code.co_filename
        last, between = (last, between or path != _RECORDERS) if is_ours(path) else (step, False)
        step = step.tb_next
    if last is None or between:
        return False
    last.tb_next = None  # as if no recorder had been in between
    return True


def _failed(error: Exception, others: tuple[Any, ...]) -> CaptureError:
    """Says that a call failed with ``error`` while it was recorded, in a function of these kinds of others."""
    known = OUT_OF_MEMORY() if isinstance(error, torch.cuda.OutOfMemoryError) else reason_of(error)
    failed = CaptureError(FAILED_RECORDING.because(known, error=f"{type(error).__name__}: {error}"))
    failed.others = others
    return failed


def _kinds(recorder: Recorder, reader: Reader | None) -> tuple[Any, ...]:
    """The function of others that a recording came to nothing in, or that read what can't be compared."""
    if recorder.blamed is not None:
        return (recorder.blamed.kind,)
    return () if reader is None or reader.others is None else (reader.others,)


@contextmanager
def _watching(reads: ReadSet, recorder: Recorder) -> Iterator[None]:
    def started(code: CodeType, frame: FrameType) -> None:
        reads.started(code, frame)
        if reads.refused is not None and not recorder.at_work:
            recorder.at_work = modules_at_work()

    def asks(function: Any, frame: FrameType) -> None:
        if draws(function):
            recorder.draws, recorder.drew = True, recorder.drew or modules_at_work()
        reads.asks(function, frame)
        if reads.asks_for_modes:
            recorder.step_aside()
        if reads.refused is not None and not recorder.at_work:
            recorder.at_work = modules_at_work()

    with ExitStack() as stack:
        try:
            recorder.watch = stack.enter_context(watched(started, asks))
        except NotWatched as error:
            recorder.refuse(reason_of(error), passing=True)
        try:
            yield
        finally:
            recorder.watch = Unwatched()  # a cycle would keep the recorder
