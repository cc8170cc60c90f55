"""How calls of one signature are cut along their batch, one part for each device."""

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
    """How calls of one signature are cut.

    Attributes:
        spans: each part's span of the batch.
        entries: each part's cache entry.
        programs: the other devices' programs, for each part but the first.
        tree: builds a call's result from its leaves.
        results: these leaves; tensors on the meta device stand for the parts' tensors, joined.
        whole: the guard of the whole call, where that reads more than the parts do.
        served: the number of calls that were computed so.
    """

    spans: list[Span]
    entries: list[CacheEntry]
    programs: list[GraphedProgram]
    tree: Any = None
    results: list[Any] = field(default_factory=list)
    whole: Guard | None = None
    served: int = 0


def part_of(call: Call, batch: int, span: Span) -> Call:
    """The call of one span of the batch, with its signature."""
    args, kwargs = cut((call.args, call.kwargs), batch, span)
    part = call.part(args, kwargs, OfPart())
    part.sign()
    return part


def built(plan: Plan, results: Sequence[Sequence[torch.Tensor]]) -> Any:
    """A call's result, made of its parts' tensors."""
    parts = iter(zip(*results, strict=True))
    leaves = [
        joined(next(parts), plan.spans, leaf) if isinstance(leaf, torch.Tensor) else leaf for leaf in plan.results
    ]
    return plan.tree.build(leaves)


def named(value: Any, names: frozenset[str]) -> str | None:
    """The first of these names that is a key somewhere in the arguments, or None."""
    if not names or not isinstance(value, (dict, list, tuple)):
        return None
    if isinstance(value, dict) and not names.isdisjoint(value):
        return min(names & value.keys())
    return next(
        (found for item in (value.values() if isinstance(value, dict) else value) if (found := named(item, names))),
        None,
    )


def launching_on(device: torch.device) -> AbstractContextManager[Any]:
    """A context in which kernels that name no device are launched on this one."""
    return torch.cuda.device(device) if device.type == "cuda" else nullcontext()
