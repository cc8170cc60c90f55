"""Computes a model's deep layers in some steps of a sampling, and reuses them in later ones."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ..capture import CaptureError, OutputSpec, Surroundings, tensors_of
from ..config import CompileConfig
from ..graphed import GraphedProgram
from ..programs.deployment import Deployment
from ..programs.proof import distance_to_eager, largest_distance
from ..reporting.report import ModuleReport
from ..reporting.reporter import Reporter
from ..reporting.signature_report import SignatureReport
from ..runtime.program import Program
from .reuse import FEWEST_STEPS, Reuse

_OTHERS = "easycache"  #: the option that ComfyUI's EasyCache sets
_NOBODY = "nobody says when a sampling begins and how many steps it has"


@dataclass
class _Sequence:
    """The calls of one sampling for one part of the prompt."""

    reuse: Reuse
    deep: torch.Tensor


@dataclass
class _Sampling:
    """One sampling, told apart by ``what()``, and its sequences of calls by the part of the prompt."""

    what: Callable[[], Any]
    sequences: dict[str, _Sequence] = field(default_factory=dict)


class _Outputs:
    """As :class:`OutputSpec`, for a program whose last result is the deep layers' tensor, which it keeps."""

    deep: torch.Tensor | None = None

    def __init__(self, outputs: OutputSpec) -> None:
        self._outputs = outputs
        self.writes = outputs.writes

    def recorded(self, inputs: list[torch.Tensor], result: Any) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
        return self._outputs.recorded(inputs, result)

    def first(self, result: Any, made: Any, results: Any, deliver: Any, inputs: list[torch.Tensor]) -> Any:
        return self.build(deliver(results), inputs)  # calls that leave tensors elsewhere aren't cut

    def build(self, tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> Any:
        self.deep = tensors[-1]
        return self._outputs.build(tensors[:-1], inputs)

    def repeat(self, tensors: list[torch.Tensor], inputs: list[torch.Tensor]) -> None:
        self._outputs.repeat(tensors[:-1], inputs)


class ReusingProgram(GraphedProgram):
    """A :class:`GraphedProgram` some of whose calls reuse an earlier deep result in a shallow program.

    It has to know when a sampling begins and how many steps it has. Where nobody tells, in samplings of fewer than nine
    steps, and beside a node that skips steps itself, every call is computed as a whole.

    Args:
        shallow: the shallow program; the deep layers' tensor is its last input.
        budget: how far a step may be from what the whole program would give.
        program: the whole program; the deep layers' tensor is its last result.
        outputs, there, report: as those of :class:`GraphedProgram`.
    """

    ahead = False  # first it has to be known which of the two programs computes the call

    def __init__(
        self,
        shallow: Program,
        budget: float,
        program: Program,
        outputs: OutputSpec,
        there: Deployment,
        report: SignatureReport,
    ) -> None:
        self._with_deep = _Outputs(outputs)
        super().__init__(program, self._with_deep, there, report)  # type: ignore[arg-type]
        self._budget = budget
        self._own = SignatureReport(report.inputs)  # of the shallow program, whose calls ``report`` counts already
        counts = Reporter(ModuleReport(there.reporter.report.name, host=there.reporter.report.host))
        self._shallow = GraphedProgram(shallow, outputs, replace(there, reporter=counts), self._own)
        self._sampling: _Sampling | None = None
        self._refused: str | None = None
        self._running = False

    def prove(
        self, inputs: list[torch.Tensor], result: Any, computed_in: frozenset[torch.dtype], tolerance: float | None
    ) -> Any:
        """As :meth:`GraphedProgram.prove`. The shallow program, given the deep result, must agree with the whole."""
        own = super().prove(inputs, result, computed_in, tolerance)
        try:
            given = [*inputs, self._deep()]
            distance_to_eager(
                tensors_of(self._shallow.prove(given, own, computed_in, tolerance)),
                tensors_of(own),
                tolerance,
                computed_in,
            )
        except CaptureError as error:
            self._refused = f"the rest of the model gives something else: {error}"
        return own

    def run(
        self,
        inputs: list[torch.Tensor],
        config: CompileConfig,
        replayed: list[torch.Tensor] | None = None,
        around: Surroundings | None = None,
    ) -> Any:
        """As :meth:`GraphedProgram.run`, computed as a whole or with the deep result of an earlier call."""
        sampling = self._now(around)
        if sampling is None:
            return self._run_whole(inputs, config)
        which = str(around.options.get("cond_or_uncond")) if around is not None else ""
        before = sampling.sequences.get(which)
        if before is not None and before.reuse.left > 0:
            result = self._run_shallow(inputs, before.deep, config)
            before.reuse.used()
            self._report.calls += 1
            self._report.reused += 1
            self._reporter.report.calls["replayed" if self._shallow.captured else "fused"] += 1
            return result
        result = self._run_whole(inputs, config)
        if before is None:
            sampling.sequences[which] = _Sequence(Reuse(self._budget), self._deep())
        else:
            before.reuse.measured(
                largest_distance(tensors_of(self._run_shallow(inputs, before.deep, config)), tensors_of(result))
            )
            before.deep = self._deep()
        return result

    def release(self) -> None:
        """Release both graphs, and the deep results of a sampling."""
        super().release()
        if not self._running:  # else it is the whole program alone that gives up its graph, within a call
            self._shallow.release()
            self._sampling = None

    def release_evicted(self) -> None:
        """See :class:`GraphedProgram`."""
        super().release_evicted()
        self._shallow.release_evicted()

    def _run_whole(self, inputs: list[torch.Tensor], config: CompileConfig) -> Any:
        self._running = True
        try:
            return super().run(inputs, config)
        finally:
            self._running = False

    def _run_shallow(self, inputs: list[torch.Tensor], deep: torch.Tensor, config: CompileConfig) -> Any:
        before = self._own.graph_bytes
        result = self._shallow.run([*inputs, deep], config)
        self._report.graph_bytes += self._own.graph_bytes - before
        return result

    def _deep(self) -> torch.Tensor:
        """The deep result of the last call that was computed as a whole."""
        deep, self._with_deep.deep = self._with_deep.deep, None
        assert deep is not None
        return deep

    def _now(self, around: Surroundings | None) -> _Sampling | None:
        """The present sampling, or None where its steps can't reuse deep results."""
        options = around.options if around is not None else {}
        sigmas = options.get("sample_sigmas")
        what, steps = (
            (sigmas, len(sigmas) - 1) if isinstance(sigmas, torch.Tensor) else (self._store.period(), self._store.steps)
        )
        if (reason := self._why_not(what, steps, bool(options.get(_OTHERS)))) is not None:
            self._say(reason)
            self._sampling = None
            return None
        if self._sampling is None or self._sampling.what() is not what:
            self._sampling = _Sampling(weakref.ref(what) if isinstance(what, torch.Tensor) else lambda: what)
        return self._sampling

    def _why_not(self, what: Any, steps: int | None, others: bool) -> str | None:
        """Why no step of this sampling reuses another's deep result, or None."""
        if self._refused is not None or what is None or steps is None:
            return self._refused or _NOBODY
        if others:
            return "EasyCache or LazyCache answers steps itself"
        return f"a sampling of {steps} steps is too short" if steps < FEWEST_STEPS else None

    def _say(self, reason: str) -> None:
        words = f"no step uses what another computed: {reason}"
        if words not in self._report.lossy:
            self._report.lossy.append(words)
            self._reporter.say(f"computes each step as a whole: {reason}")

    def _compared(self, results: list[torch.Tensor]) -> list[torch.Tensor]:
        return results[:-1]
