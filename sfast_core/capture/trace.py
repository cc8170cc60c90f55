"""One recorded call of a module: its graph, how its result is put together, and the result itself."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from types import CodeType, FrameType
from typing import Any

import torch

from ..reporting.reason import reason_of, told
from ..reporting.reasons.memory import OUT_OF_MEMORY
from ..reporting.reasons.records import (
    CHANGES_MODULE,
    CHANGES_SETTING,
    FAILED_RECORDING,
    NOT_READ,
    RANDOM,
    RANDOM_MEANWHILE,
    SAYS,
)
from ..weights import WeightRef, WeightTable
from .arrays import arrays_seen
from .as_written import as_written
from .call_tensors import CallTensors, nowhere
from .errors import CaptureError, GradientsRecorded
from .externals import Externals
from .fast_path import OTHERWISE, computes_otherwise
from .guards import Guard, NotRepeated, NotWatched, Reader, ReadSet, Unwatched, effects_of, watched
from .leaf import run_as_they_are
from .live import LiveCall, Surroundings
from .live.functions import InTable, found_as_live
from .live.mentioned import mentioned_by
from .live.modules import LiveModules, modules_at_work
from .live.recording import out_of_sight
from .outliers import REASON, looks_for_outliers
from .random_state import RandomState
from .recorder import Recorder
from .result import OutputSpec, split_result
from .routed import Routed, is_mixture
from .thread_state import raised_here
from .torch_state import State, changed_setting, torch_state
from .unseen import unseen_as_one

LeafScope = Callable[[Recorder], AbstractContextManager[Any]]


@dataclass(frozen=True)
class Trace:
    """A recorded call.

    Attributes:
        graph: placeholders for the signature's tensors, then for the weights (``meta["source"]``). It is to run with
            autocast off.
        outputs: how its results make the call's.
        seconds: what recording took, with the call.
        computed_in: the dtypes that autocast was to compute in, and those of quantised weights.
        kept: what holds the tensors that the graph reads where they were found, beside arguments and the module.
        live: its calls of code that runs live, in order; with their callbacks' graphs.
        others: the functions of others that were recorded with the model's code: their names, by their kinds.
        as_they_lie: weights that the forward asks how they lie in memory: they are not to be laid out anew.
    """

    graph: torch.fx.Graph
    outputs: OutputSpec
    seconds: float
    computed_in: frozenset[torch.dtype] = frozenset()
    kept: tuple[torch.nn.Module, ...] = ()
    live: tuple[LiveCall, ...] = ()
    others: Mapping[Any, str] = field(default_factory=dict)
    as_they_lie: frozenset[WeightRef] = frozenset()


@dataclass(frozen=True)
class Untraceable:
    """Why a call left no trace.

    Attributes:
        passing: another call of the same signature may leave one.
        changing: it changes what it reads.
        closed: it computed with tensors of these classes in a way that can't be recorded.
        inside: the modules inside which that happened, the innermost first: one of them may run live.
        readers: who read what the call changes, or can't be compared: a function of theirs may run live, or a module.
        cut: something will, so that the next call is to be recorded without delay.
        others: the kinds of functions of others, recorded with the model's code, inside which that happened.
    """

    reason: str
    passing: bool = False
    changing: bool = False
    closed: frozenset[type] = frozenset()
    inside: tuple[torch.nn.Module, ...] = ()
    readers: tuple[Reader, ...] = ()
    cut: bool = False
    others: tuple[Any, ...] = ()


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
    table = WeightTable(root)
    recorder = Recorder(inputs, table)
    recorder.random, recorder.read_set, recorder.device = random, reads, device
    cut, around = live.of(root) if live else {}, around or Surroundings(None, root)

    def run(
        module: torch.nn.Module, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if id(module) in cut:
            return recorder.call_live_code(cut[id(module)], around, function, args, kwargs)
        if module in mixtures:
            return routed(module, function, args, kwargs)
        return recorder.run_leaf(module, function, args, kwargs, REASON if looks_for_outliers(module) else "")

    def run_function(which: InTable, *call: Any) -> Any:
        return recorder.call_live_code(which, around, *call)

    modules = list(root.modules())  # once, and while nobody is told of each step
    apart = [module for module in modules if id(module) in cut] if cut else []
    functions = live.functions() if live else []
    routed = Routed(recorder, out_of_sight)
    mixtures = [module for module in modules if id(module) not in cut and is_mixture(module)]
    asking = [module for module in modules if looks_for_outliers(module) and module is not root]
    otherwise = any(map(computes_otherwise, modules))
    reads.run_live([*apart, *asking], [*(each.function for each in functions), *(module.state for module in asking)])
    whole = run_as_they_are([*apart, *asking, *mixtures, *table.closed(closed)], run)
    scope = leaf_scope(recorder) if leaf_scope else nullcontext()
    # No ExitStack: an interruption between its entering a context and its noting that would leave the context entered.
    unseen = unseen_as_one(recorder, list(around.functions.values()))
    with (
        scope,
        as_written(),
        whole,
        found_as_live(functions, run_function),
        unseen,
        arrays_seen(recorder.from_array),
        _watching(reads, recorder),
        recorder,
    ):
        if otherwise:
            recorder.refuse(OTHERWISE)
            recorder.step_aside()
        try:
            result = call()
        except Exception as error:
            if id(error) == recorder.raised or raised_here(error):
                recorder.input_writes.put_back(inputs)
                # in no variable: this frame would hold it, and it this frame
                raise _failed(error, _kinds(recorder, None)) from error
            raise
    try:
        result, found, guard = _found(
            result, inputs, table, recorder, reads, random, settings, start, around, returns_each
        )
    except Exception as error:  # the call went well all the same
        return result, Untraceable(NOT_READ(error=f"{type(error).__name__}: {error}"), passing=True), None
    if isinstance(found, Untraceable) and not found.others:
        found = replace(found, others=_kinds(recorder, reads.refused_in))
    guard.decisions = recorder.decisions or None
    return result, found, guard


def _found(
    result: Any,
    inputs: list[torch.Tensor],
    table: WeightTable,
    recorder: Recorder,
    reads: ReadSet,
    random: RandomState,
    settings: State,
    start: float,
    around: Surroundings,
    returns_each: bool,
) -> tuple[Any, Trace | Untraceable, Guard]:
    """The result of a recorded call that is over, its trace or why there is none, and how long that holds."""
    reads.finish()
    for kept in recorder.kept_by_live:
        if (own := kept.put_into(result)) is not result:  # one and the same at each call, and ours would be another
            result = own
            recorder.refuse(f"the result holds a {type(kept.own).__name__} that {kept.by} keeps")
    recorder.decisions.finish()
    if random.moved():
        return result, Untraceable(RANDOM(), inside=tuple(recorder.drew)), Guard(reads)
    if random.foreign_moved():  # by this call, or meanwhile by another thread: then not the next time
        return result, Untraceable(RANDOM_MEANWHILE(), passing=True), Guard(reads)
    if setting := changed_setting(torch_state(), settings):
        return result, Untraceable(CHANGES_SETTING(setting=setting)), Guard(reads)
    return result, *_traced(result, inputs, table, recorder, reads, start, around, returns_each)


def _traced(
    result: Any,
    inputs: list[torch.Tensor],
    table: WeightTable,
    recorder: Recorder,
    reads: ReadSet,
    start: float,
    around: Surroundings,
    returns_each: bool,
) -> tuple[Trace | Untraceable, Guard]:
    """The trace of a recorded call that is over, or why there is none."""
    externals = Externals(reads)
    # What code that runs live has returned may be something else at each call.
    known = () if recorder.live or returns_each else inputs
    tensors = (
        CallTensors(known, partial(_kept_at, recorder, externals), returns_each, recorder.kept_in)
        if known is inputs
        else CallTensors(known, nowhere, returns_each)
    )
    try:
        if reads.refused is not None:
            raise CaptureError(reads.refused)
        spec = split_result(result, tensors, externals.containers)
    except CaptureError as error:
        if reads.refused is None:
            return Untraceable(reason_of(error)), Guard(reads)
        return Untraceable(
            reason_of(error), inside=tuple(recorder.at_work), readers=(reads.refused_in,) if reads.refused_in else ()
        ), Guard(reads)
    if said := reads.said.heard():
        readers = tuple(each.reader for each in said)
        others = tuple(reader.others for reader in readers if reader.others is not None)
        return Untraceable(SAYS(name=said[0].by), changing=True, readers=readers, others=others), Guard(reads)
    # By a tensor that is no parameter, or because the forward turns gradients on itself.
    if any(tensor.requires_grad and (torch.is_grad_enabled() or not tensor.is_leaf) for tensor in tensors.computed):
        return Untraceable(reason_of(GradientsRecorded()), passing=True), Guard(reads)
    try:
        functions = [call.where.find(around) for call in recorder.live]
        mentioned = partial(mentioned_by, functions) if functions else None
        effects = effects_of(reads, recorder.reads, tensors, mentioned, around.given)
    except NotRepeated as change:
        tables = {table for table, _ in change.places}
        owners = tuple(
            module
            for module in root_modules(reads)
            if not tables.isdisjoint(map(id, (module.__dict__, module._buffers, module._parameters)))
        )
        readers = tuple(reader for place in change.places if (reader := reads.readers.of.get(place)) is not None)
        others = tuple(reader.others for reader in readers if reader.others is not None)
        return Untraceable(
            CHANGES_MODULE(what=change), changing=True, inside=owners, readers=readers, others=others
        ), Guard(reads, without=change.places)
    effects.hand_on(around.options)  # the recorded call has left those that only a recording can read
    if kept := externals.also_kept(inputs, table):
        return Untraceable(f"a tensor that is passed is also {kept}, which the call may read", passing=True), Guard(
            reads
        )
    recorder.check_beside(externals.watches)
    graph = recorder.finish(list(tensors.computed), externals)
    recorder.input_writes.finish(inputs)
    for asked in recorder.told:
        reads.told(asked.now, asked.answer, asked.name)
    bound = {
        (id(table), ref.name): table for ref in recorder.weights if ref.owner() is not None for table in [ref.table()]
    }
    contents: set[tuple[int, None]] = set()  # of these lists
    if names := recorder.left_to_host:
        for layer in root_modules(reads):
            if any(hasattr(type(layer), name) for name in names):
                bound |= {(id(layer.__dict__), name): layer.__dict__ for name in names}
                contents |= {
                    (id(value), None) for name in names if isinstance(value := getattr(layer, name, None), list)
                }
    guard = Guard(reads, bound, externals.fixed | effects.targets, contents)
    if graph is None:
        inside, readers = tuple(recorder.at_work), (recorder.ended_in,) if recorder.ended_in else ()
        return (
            Untraceable(
                told(recorder.failure or ""),
                recorder.passing,
                closed=frozenset(recorder.closed),
                inside=inside,
                readers=readers,
            ),
            guard,
        )
    root = reads.root()
    # in a way that is not among the effects: a second call would read it
    if root is not None and (left := guard.changed(root)):
        return Untraceable(CHANGES_MODULE(what=left), changing=True), guard
    effects.settle(tensors)
    leaves = tuple(map(tensors.settled, spec.leaves))
    elsewhere = tensors.computed[len(spec.returned) :]
    outputs = replace(spec, leaves=leaves, effects=effects, writes=recorder.input_writes, left=elsewhere)
    computed_in = recorder.autocast.computed_in | recorder.quantised_to
    seconds, lie = time.perf_counter() - start, frozenset(recorder.as_they_lie | tensors.viewed)
    return (
        Trace(
            graph,
            outputs,
            seconds,
            frozenset(computed_in),
            tuple(externals.holders),
            tuple(recorder.live),
            around.inside_kinds,
            lie,
        ),
        guard,
    )


def _kept_at(recorder: Recorder, externals: Externals, tensor: torch.Tensor) -> WeightRef | None:
    """Where a tensor is kept that was there before the call."""
    return None if recorder.computes(tensor) else recorder.table.find(tensor) or externals(tensor)


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


def root_modules(reads: ReadSet) -> list[torch.nn.Module]:
    """The modules below the one that is recorded."""
    root = reads.root()
    return [] if root is None else [module for module in root.modules() if module is not root]


@contextmanager
def _watching(reads: ReadSet, recorder: Recorder) -> Iterator[None]:
    def started(code: CodeType, frame: FrameType) -> None:
        reads.started(code, frame)
        if reads.refused is not None and not recorder.at_work:
            recorder.at_work = modules_at_work()

    def asks(function: Any, frame: FrameType) -> None:
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
