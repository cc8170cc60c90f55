"""How calls of one signature are computed in parts, and the parts themselves."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from ..capture import Call, Guard
from ..graphed import GraphedProgram
from ..programs.entries import CacheEntry
from .batch import Span, cut, joined
from .part import OfPart


@dataclass
class Plan:
    """How calls of one signature are computed.

    Attributes:
        spans: of the batch, for each part.
        entries: theirs.
        programs: those of the entries on the other devices, for each part but the first.
        tree: how results are built,
        results: of these leaves: tensors on the meta device stand for the parts' own, joined.
        whole: watches what a whole call reads, where that is more than a part does.
        served: how many calls it has.
    """

    spans: list[Span]
    entries: list[CacheEntry]
    programs: list[GraphedProgram]
    tree: Any = None
    results: list[Any] = field(default_factory=list)
    whole: Guard | None = None
    served: int = 0


def part_of(call: Call, batch: int, span: Span) -> Call:
    """A signed call of one span of the batch."""
    args, kwargs = cut((call.args, call.kwargs), batch, span)
    part = call.part(args, kwargs, OfPart())
    part.sign()
    return part


def built(plan: Plan, results: Sequence[Sequence[torch.Tensor]]) -> Any:
    """A call's result of its parts'."""
    parts = iter(zip(*results, strict=True))
    leaves = [
        joined(next(parts), plan.spans, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in plan.results
    ]
    return plan.tree.build(leaves)


def named(value: Any, names: frozenset[str]) -> str | None:
    """Which of these names is a key somewhere in the arguments, or None."""
    if not names or not isinstance(value, (dict, list, tuple)):
        return None
    if isinstance(value, dict) and not names.isdisjoint(value):
        return min(names & value.keys())
    return next(
        (found for item in (value.values() if isinstance(value, dict) else value) if (found := named(item, names))),
        None,
    )


def launching_on(device: torch.device) -> AbstractContextManager[Any]:
    """What is launched without a device of its own goes there."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
