"""From a trace to a program: rewrite, choose impls, list the instructions.

Wires ``rewrite``, ``ops`` and ``runtime`` for the engine.
"""

from __future__ import annotations

import functools
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch.fx import Graph, Node

from .capture import Trace
from .capture.calls import function_name
from .capture.functional import cast_like
from .capture.leaf import Leaf
from .capture.live import Form
from .capture.nodes import is_live, take_apart
from .config import CompileConfig
from .machine.choices import Choices
from .machine.numerics import Numerics
from .ops import all_ops
from .programs.cutting import callbacks_of, cut_up
from .programs.deployment import Deployment
from .programs.jobs import job_of
from .quality.levels import FP16_SUMS, PRODUCTS, allowed
from .quality.sensitivity import SensitivityOfCall
from .reporting.reasons.graphs import FROM_PYTHON, NO_CUDA, ON_ANOTHER, TOO_LARGE
from .reporting.reporter import Reporter
from .reporting.signature_report import SignatureReport
from .rewrite import KEPT, Call, Rewritten, Selection, has_impl, known_patterns, rewrite, select_impls, write_in_place
from .rewrite.graph import output_of
from .runtime.instructions import as_function
from .runtime.program import Program
from .runtime.segments import Body, is_cut
from .runtime.tuner import Tuner
from .sharding import delay
from .target import Target, probed
from .weights import Arrival
from .weights.eight_bits import EIGHT_BITS


def _choices(target: Target) -> Choices:
    """Those of all devices of this kind: what was measured on one needn't be on the next."""
    return _choices_of_kind(replace(target, device=torch.device(target.device.type)))


@functools.cache
def _choices_of_kind(target: Target) -> Choices:
    return Choices.of(target)


def lower(
    trace: Trace,
    there: Deployment,
    config: CompileConfig,
    report: SignatureReport,
    layers: SensitivityOfCall | None = None,
) -> Program:
    """Make a program of ``trace`` and write into ``report`` what became of it.

    Args:
        trace: a recorded call; its graph is used up.
        there: where it runs. Its reporter is told how much of the compiling and measuring of kernels is done.
        config: what may be done.
        report: gets passes, impls, sizes and times.
        layers: how sensitive the module's layers are, where the config allows less than exactness. None: then all is
            exact.
    """
    start = time.perf_counter()
    graph, device = trace.graph, there.device
    forms = _forms(graph)
    graphs = [graph, *callbacks_of(trace.live)]
    ops = all_ops().values()
    granted = allowed(config) if layers is not None else None
    in_half_sums = granted is not None and FP16_SUMS in granted.parts
    numerics = Numerics.now()
    target = replace(probed(device), numerics=replace(numerics, fp16_accumulation=True) if in_half_sums else numerics)
    disabled, refused = known_patterns(config.disabled_impls, ops), dict[str, dict[str, str]]()
    available = has_impl(ops, target, disabled, refused)
    may_pack = functools.partial(there.store.may_pack, device=device) if config.adopt_weights else None
    rewritten_by = rewrite
    if layers is not None and granted is not None and PRODUCTS in granted.parts:
        chooser = layers.sensitivity.chooser(
            granted, layers.inputs, there.store, _choices(probed(device)), target, available, report.lossy.append
        )
        rewritten_by = functools.partial(rewrite, in_eight_bits=chooser)
    rewritten = [rewritten_by(each, may_pack, config.disabled_passes, available) for each in graphs]
    choose = None
    if there.backend is not None:
        tuner = Tuner(device, there.backend, _choices(probed(device)), config.measure)
        choose = functools.partial(_fastest, tuner, target.numerics, there.reporter)
    selections = [select_impls(each, ops, target, disabled, choose) for each in graphs]
    delay(graph)
    _note(report, rewritten, selections, refused)
    report.lossy = list(dict.fromkeys(report.lossy))
    if in_half_sums and (count := _in_half_sums(report)):
        report.lossy.append(f"{count} products of float16 summed in float16")
    program = _program(trace, graphs, forms, device, config, there.backend is not None)
    if program.cut is not None:
        _note_segments(report, program.cut)
    for each in graphs:
        take_apart(each)
    report.trace_s, report.rewrite_s = trace.seconds, time.perf_counter() - start
    return program


def _fastest(tuner: Tuner, numerics: Numerics, reporter: Reporter, calls: Sequence[Call]) -> list[str]:
    """The impl that was fastest for each call."""
    return tuner.decide([job_of(call, numerics) for call in calls], functools.partial(reporter.announce, "tracing"))


def _program(
    trace: Trace,
    graphs: list[Graph],
    forms: tuple[Form, ...],
    device: torch.device,
    config: CompileConfig,
    has_cuda: bool,
) -> Program:
    """What runs: the list of the graph's instructions, or of those between live calls, and what they read."""
    graph = trace.graph
    in_place = {} if trace.live else write_in_place(graph, trace.outputs.states)
    weights, constants = (
        [node for each in graphs for node in each.nodes if kind in node.meta] for kind in ("source", "constant")
    )
    sources = [node.meta["source"] for node in weights]
    body = cut_up(graph, trace.live, [*weights, *constants])
    why_not_each = (_why_not_capturable(each, device) for each in graphs)
    why_no_graph = _why_not_worth_it(graph, config) or next(filter(None, why_not_each), None) if has_cuda else NO_CUDA()
    return Program(
        run=as_function(graph) if body is None else _uncut,
        weights=tuple(sources),
        constants=tuple(node.meta["constant"] for node in constants),
        forms=_kept_as_they_lie(graph, forms),
        kept_results=frozenset(index for index, node in enumerate(_results(graph)) if KEPT in node.meta),
        capturable=why_no_graph,
        owners=trace.kept,
        arrivals=tuple(_arrival(node, device) for node in weights),
        cut=body,
        in_place=in_place,
        rounded=next((source.refs[0].tensor().dtype for source in sources if source.layout in EIGHT_BITS), None),
    )


def _arrival(weight: Node, device: torch.device) -> Arrival:
    """What is to be known of a weight should it have to be brought, by who reads it."""
    if weight.meta["device"] != device:
        return Arrival(f"it was read on {weight.meta['device']}")
    if layers := [user.name for user in weight.users if isinstance(user.target, Leaf) and not is_cut(user)]:
        return Arrival(f"{layers[0]} runs as it is")
    if any(is_live(user) for user in weight.users):
        return Arrival("it is handed to other people's code")
    casts = {user.args[1] if user.target is cast_like and not user.kwargs else None for user in weight.users}
    (dtype,) = casts if len(casts) == 1 else (None,)
    return Arrival(dtype=dtype)


def _in_half_sums(report: SignatureReport) -> int:
    return sum(count for name, count in report.impls.get("linear", {}).items() if name.startswith("cublaslt_fp16"))


def _uncut(*_: object) -> list[torch.Tensor]:
    """In the place of a program's ``run`` that is cut."""
    raise NotImplementedError("this program is run by its segments")


def _note(
    report: SignatureReport, rewritten: list[Rewritten], selections: list[Selection], refused: dict[str, dict[str, str]]
) -> None:
    """Write into the report what the passes and the choice of impls did, in all graphs of a call together."""
    passes: Counter[str] = Counter()
    impls: dict[str, Counter[str]] = {}
    for each in rewritten:
        passes.update(each.counts)
    for selection in selections:
        for op, chosen in selection.chosen.items():
            impls.setdefault(op, Counter()).update(chosen)
        for op, reasons in selection.refused.items():
            refused.setdefault(op, {}).update(reasons)
    report.passes = dict(passes)
    report.nodes_before = sum(each.nodes_before for each in rewritten)
    report.nodes_after = sum(each.nodes_after for each in rewritten)
    report.impls = {op: dict(chosen) for op, chosen in impls.items()}
    report.refused = {op: dict(reasons) for op, reasons in refused.items()}


def _note_segments(report: SignatureReport, body: Body) -> None:
    """Write into the report what runs live between segments, and why."""
    lives = body.all_lives()
    report.segments, report.live = body.stretches(), [live.name for live in lives]
    report.live_because = list(dict.fromkeys(why for live in lives if (why := live.because) is not None))


def _forms(graph: Graph) -> tuple[Form, ...]:
    return tuple(Form.of(node.meta["val"])._replace(device=node.meta["device"]) for node in _results(graph))


def _results(graph: Graph) -> list[Node]:
    return list(output_of(graph).args[0])


def _kept_as_they_lie(graph: Graph, forms: tuple[Form, ...]) -> tuple[Form, ...]:
    """Frames kept for the next call lie as this program reads them: as a part of others they weren't dense."""
    return tuple(
        form._replace(stride=tuple(node.meta["val"].stride())) if KEPT in node.meta else form
        for form, node in zip(forms, _results(graph), strict=True)
    )


def _why_not_worth_it(graph: Graph, config: CompileConfig) -> str | None:
    """Large pictures take milliseconds a kernel, so launching them costs nothing; a graph holds gigabytes."""
    given = (
        node.meta["val"]
        for node in graph.nodes
        if node.op == "placeholder" and "source" not in node.meta and "constant" not in node.meta
    )
    picture = next((val for val in given if val.dim() in (4, 5)), None)
    if config.graph_pixels is None or picture is None or picture.numel() // picture.shape[1] <= config.graph_pixels:
        return None
    return TOO_LARGE()


def _why_not_capturable(graph: Graph, device: torch.device) -> str | None:
    """Why a CUDA graph on ``device`` can't hold what the graph computes, or None."""
    for node in graph.nodes:
        if is_cut(node):
            continue
        if node.op != "placeholder" and _copies_from_python(node):
            return FROM_PYTHON(name=node.name)
        where = node.meta.get("device")
        if where in (None, device) or (node.op == "placeholder" and all(user.op == "output" for user in node.users)):
            continue  # an input that is handed back as it is may be anywhere
        return ON_ANOTHER(name=node.name, where=where)
    return None


def _copies_from_python(node: Node) -> bool:
    """Whether a call makes a tensor of Python's values, as those do that the passes couldn't turn into constants."""
    name = function_name(node.target)
    if name in ("tensor", "new_tensor", "as_tensor", "asarray", "tensor_of"):
        return not (node.args and isinstance(node.args[0], Node) and name in ("as_tensor", "asarray"))
    if name not in ("__getitem__", "__setitem__", "setitem"):
        return False
    index = node.args[1]
    return any(isinstance(item, list) for item in (index if isinstance(index, tuple) else (index,)))
