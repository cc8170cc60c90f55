"""From a recorded call to a program that has proved itself: lowered, run on what was recorded, and near enough to what
came of it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from ..capture import CaptureError, Signature, Surroundings, Trace, autocast_off
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..quality.levels import REUSE, allowed
from ..quality.reused import ReusingProgram
from ..quality.sensitivity import Sensitivity
from ..reporting.reasons.graphs import GRAPHS_OFF
from ..reporting.reasons.records import OVER_BUDGET
from ..reporting.report import SignatureReport
from ..reporting.reporter import Reporter
from ..rewrite.deep_part import Cut, cut_deep
from ..runtime.any_store import Store
from ..runtime.program import Program
from .entries import CacheEntry
from .on_device import OnDevice
from .segmented import SegmentedProgram

_ABOVE = 1.25  #: times the budget, a program may be from the model by its products of 8 bits,
_ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 8e-2}  #: and this by another order of operations
_ROUNDING_ELSE = 1e-3


class OverBudget(CaptureError):
    """A program that is allowed not to be exact is further from the model than that.

    The next one is made with that in mind.
    """


def fuse(
    lower: Callable[..., Program],
    on: OnDevice,
    entry: CacheEntry,
    trace: Trace,
    signature: Signature,
    result: Any,
    around: Surroundings,
    store: Store,
    config: CompileConfig,
    sensitivity: Sensitivity,
    reporter: Reporter,
) -> Any:
    """Make the entry's program by :func:`lower` and prove it.

    Returns what it computes in the place of the recorded ``result``.

    Raises:
        CaptureError: it isn't right.
        OverBudget: it isn't near enough to the model.
    """
    device, backend = on.device, on.graphs.backend if on.graphs else None
    progress = partial(reporter.announce, "tracing")
    granted = allowed(config)
    store.leave(trace.as_they_lie)
    deep = _cut(trace) if granted is not None and REUSE in granted.parts else ""

    def lowered(trace: Trace, report: SignatureReport) -> Program:
        return lower(trace, device, store, config, backend, report, progress, sensitivity, signature.tensors)

    with autocast_off():  # constants are folded and kernels timed as they will run
        program = lowered(trace, entry.report)
        if isinstance(deep, Cut):
            shallow = lowered(replace(trace, graph=deep.shallow), SignatureReport(""))
    kind: Callable[..., GraphedProgram] = (
        GraphedProgram if program.body is None else partial(SegmentedProgram, around.afresh())
    )
    if granted is not None and isinstance(deep, Cut):
        kind = partial(ReusingProgram, shallow, granted.reused)
        entry.report.lossy.append(
            f"{deep.share:.0%} of the work may be used again by later steps, within {granted.reused:.1e} of the exact"
            " result of each"
        )
    elif deep:
        entry.report.lossy.append(f"no step uses what another computed: {deep}")
    graphed = entry.graphed = kind(program, trace.outputs, store, device, on.graphs, entry.report, reporter)
    entry.report.not_captured_because = program.capturable if config.cuda_graphs else GRAPHS_OFF()

    def proved(tolerance: float | None) -> Any:
        with store.pinned(device):
            return graphed.prove(signature.tensors, result, trace.computed_in, tolerance)

    if granted is None or program.rounded is None:
        return proved(config.tolerance)
    most = _ABOVE * granted.distance(program.rounded) + _ROUNDING.get(program.rounded, _ROUNDING_ELSE)
    try:
        return proved(most if config.tolerance is None else config.tolerance)
    except CaptureError as error:
        entry.graphed = None
        sensitivity.over_budget(granted, str(error))
        store.copies.drop()
        raise OverBudget(OVER_BUDGET(why=error, quality=granted.quality)) from error


def _cut(trace: Trace) -> Cut | str:
    """The call's graph in two, where all that it does is to compute; or why it isn't cut."""
    if trace.live:
        return "code of others runs inside"
    if trace.outputs.effects.leaves_tensors() or trace.outputs.writes.indices:
        return "a call leaves tensors behind besides its result"
    return cut_deep(trace.graph)
