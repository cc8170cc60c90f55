"""Computes calls along their batch: each device computes a span of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ..capture import Call, Trace, autocast_off, covers, tensors_of
from ..graphed import GraphedProgram
from ..programs.entries import CacheEntry
from ..programs.proof import computed_in
from ..reporting.signature_report import SignatureReport
from ..runtime.any_store import Store
from ..runtime.program import Program
from .asked import Asked
from .batch import sent, spans
from .others import Others
from .part import OneDevice
from .plan import Plan, built, launching_on, named, part_of
from .proving import proved
from .retarget import retargeted, why_not_retargetable


class InSpans:
    """Computes calls of one module by spans of their batch.

    Args:
        store: of the module's weights.
        others: what the module has on the other devices.
        lower: makes programs.
    """

    def __init__(self, store: Store, others: Others, lower: Callable[..., Program]) -> None:
        self._store, self._others, self._lower = store, others, lower

    def again(self, plan: Plan, asked: Asked) -> tuple[Any] | None:
        """A call's result, in a tuple. None where a guard has found a change."""
        whole, call, where = plan.whole, asked.call, asked.where
        if whole is not None and (whole.changed(call.module) is not None or not whole.decided(call.signature.tensors)):
            return None
        parts = [part_of(call, asked.batch, span) for span in plan.spans]
        here = where[0]
        given: list[list[torch.Tensor]] = []
        ahead: list[list[torch.Tensor] | None] = []
        for part, entry, program, there in zip(parts[1:], plan.entries[1:], plan.programs, where[1:], strict=False):
            if entry is not plan.entries[0] and not entry.fits(call.module, part.signature.tensors):
                return None
            if not entry.serves(part.signature.tensors):
                raise OneDevice("another part of the batch goes another way")
            # The other devices first: they compute while this device's own guard is checked.
            with launching_on(there):
                given.append([sent(tensor, here, there) for tensor in part.signature.tensors])
                ready = program.ahead and program.captured and program.readable()
                ahead.append(program.replay(given[-1]) if ready else None)
        own = asked.compute(parts[0], here)
        if parts[0].served is not plan.entries[0]:
            return None
        results = [tensors_of(own)]
        with self._store.pinned(here):
            for index, (program, inputs, replayed) in enumerate(zip(plan.programs, given, ahead, strict=True), 1):
                first = plan.entries[0].graphed if plan.entries[index] is plan.entries[0] else None
                copies = self._others.replica(index, here, where[index])
                with launching_on(where[index]), copies.found_valid(None if first is None else first.bound):
                    results.append(tensors_of(program.run(inputs, asked.config, replayed)))
        return (built(plan, results),)

    def first(self, asked: Asked, apart: frozenset[str]) -> tuple[Plan, Any]:
        """Make and prove a plan for calls like this one. Returns it, and this call's result by it.

        Args:
            asked: the call, which has been computed as a whole.
            apart: names of arguments that tell images of a batch apart.

        Raises:
            OneDevice: it can't be cut.
            CaptureError: the parts' results together aren't the call's.
        """
        call, where = asked.call, asked.where
        here = where[0]
        if name := named((call.args, call.kwargs), apart):
            raise OneDevice(f"other people's code asks for {name!r}: which image is which")
        whole = _spare(call.served)
        if reason := why_not_retargetable(whole, whole, here):
            raise OneDevice(reason)
        cuts = spans(asked.batch, len(where))
        parts = [part_of(call, asked.batch, span) for span in cuts]
        own = [asked.compute(part, here) for part in parts]  # all parts on this device, to prove the others' programs
        if any(part.served is None for part in parts):
            raise OneDevice("a part of it can't be compiled")
        for part in parts:
            if reason := why_not_retargetable(_spare(part.served), whole, here):
                raise OneDevice(reason)
        results, programs = [tensors_of(own[0])], []
        with self._store.pinned(here):
            for index in range(1, len(cuts)):
                program, result = self._replica(index, asked, parts[index], own[index])
                programs.append(program)
                results.append(tensors_of(result))
        entries = [part.served for part in parts]
        with self._store.plain():
            plan = Plan(cuts, entries, programs)
            plan = proved(call, asked.batch, plan, results, computed_in(whole), asked.config.tolerance)
        guard = call.served.guard
        if guard is not None and (guard.decisions or not all(_covers(entry, guard) for entry in entries)):
            plan.whole = guard
        return plan, built(plan, results)

    def _replica(self, index: int, asked: Asked, part: Call, expected: Any) -> tuple[GraphedProgram, Any]:
        """Another device's program for a part, proved, and its result. ``expected``: that of the first device."""
        here, there = asked.where[0], asked.where[index]
        entry: CacheEntry = part.served
        spare = _spare(entry)
        other = self._others.deployment(index, here, there)
        with launching_on(there):
            inputs = [sent(tensor, here, there) for tensor in part.signature.tensors]
            program = entry.replicas.get(index)
            if program is None:
                trace = retargeted(spare, here, there)
                report = SignatureReport(str(part.signature))
                with autocast_off():
                    lowered = self._lower(trace, other, asked.config, report)
                program = GraphedProgram(lowered, trace.outputs, other, report)
                entry.replicas[index] = program
                report.calls = 1
            tensors = [sent(tensor, here, there) for tensor in tensors_of(expected)]
            return program, program.prove(inputs, tensors, computed_in(spare), asked.config.tolerance)


def _spare(entry: CacheEntry) -> Trace:
    assert entry.spare is not None, "kept for each entry where several devices are wanted"
    return entry.spare


def _covers(entry: CacheEntry, guard: Any) -> bool:
    return entry.guard is not None and covers(entry.guard, guard)
