"""From a recorded call to a proved program: lowered, and run on the recorded inputs to give the recorded results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch

from ..capture import Call, CaptureError, Trace, autocast_off
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..quality.levels import REUSE, allowed
from ..quality.reused import ReusingProgram
from ..quality.sensitivity import Sensitivity
from ..reporting.reasons.graphs import GRAPHS_OFF
from ..reporting.reasons.records import OVER_BUDGET
from ..reporting.signature_report import SignatureReport
from ..rewrite.deep_part import Cut, cut_deep
from ..runtime.program import Program
from .deployment import Deployment
from .entries import CacheEntry
from .proof import computed_in
from .segmented import SegmentedProgram

# How far a program with layers in 8 bits may be from the model: this many times the budget,
_ABOVE = 1.25
# and beside it what another order of operations does, by the dtype of those layers.
_ROUNDING = {torch.float16: 5e-3, torch.bfloat16: 8e-2}
_ROUNDING_ELSE = 1e-3


class OverBudget(CaptureError):
    """A program with layers in 8 bits is further from the model than its budget. The next one has fewer such layers."""


@dataclass(frozen=True)
class Fusing:
    """Makes programs of a module's recorded calls.

    Attributes:
        lower: makes a program of a recorded graph.
        config: how the module is compiled.
        sensitivity: what rounding each layer to 8 bits does to the result, where the config allows that.
        there: where the programs run.
    """

    lower: Callable[..., Program]
    config: CompileConfig
    sensitivity: Sensitivity
    there: Deployment

    def fuse(self, entry: CacheEntry, trace: Trace, call: Call, result: Any) -> Any:
        """Make the entry's program, prove it, and return its result for the recorded call.

        Raises:
            CaptureError: its result isn't the recorded ``result``.
            OverBudget: its result isn't the recorded one, where layers in 8 bits may be the cause.
        """
        granted, inputs, store = allowed(self.config), call.signature.tensors, self.there.store
        dtypes = computed_in(trace)
        store.leave(trace.as_they_lie)
        deep = _cut(trace) if granted is not None and REUSE in granted.parts else ""
        with autocast_off():  # constants are folded and kernels timed as they will run
            program = self._lowered(trace, inputs, entry.report)
            if isinstance(deep, Cut):
                shallow = self._lowered(replace(trace, graph=deep.shallow), inputs, SignatureReport(""))
        kind: Callable[..., GraphedProgram] = (
            GraphedProgram if program.cut is None else partial(SegmentedProgram, call.around.afresh())
        )
        if granted is not None and isinstance(deep, Cut):
            kind = partial(ReusingProgram, shallow, granted.reused)
            entry.report.lossy.append(
                f"{deep.share:.0%} of the work may be used again by later steps, within {granted.reused:.1e} of the"
                " exact result of each"
            )
        elif deep:
            entry.report.lossy.append(f"no step uses what another computed: {deep}")
        graphed = entry.graphed = kind(program, trace.outputs, self.there, entry.report)
        entry.report.not_captured_because = program.capturable if self.config.cuda_graphs else GRAPHS_OFF()

        def proved(tolerance: float | None) -> Any:
            with store.pinned(self.there.device):
                return graphed.prove(inputs, result, dtypes, tolerance)

        if granted is None or program.rounded is None:
            return proved(self.config.tolerance)
        most = _ABOVE * granted.distance(program.rounded) + _ROUNDING.get(program.rounded, _ROUNDING_ELSE)
        try:
            return proved(most if self.config.tolerance is None else self.config.tolerance)
        except CaptureError as error:
            entry.graphed = None
            self.sensitivity.over_budget(granted, str(error))
            store.copies.drop()
            raise OverBudget(OVER_BUDGET(why=error, quality=granted.quality)) from error

    def _lowered(self, trace: Trace, inputs: list[torch.Tensor], report: SignatureReport) -> Program:
        return self.lower(trace, self.there, self.config, report, self.sensitivity.of_call(inputs))


def _cut(trace: Trace) -> Cut | str:
    """The call's graph, split around the model's deep layers, or why it can't be split."""
    if trace.live:
        return "other people's code runs inside"
    if trace.outputs.effects.leaves_tensors() or trace.outputs.writes.indices:
        return "a call leaves tensors behind besides its result"
    return cut_deep(trace.graph)
