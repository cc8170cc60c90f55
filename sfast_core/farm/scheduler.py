"""Which job a free worker takes: one for which it is warm, but for others' share, or where loading gains more.

A function of what is known now, so that a simulation runs the very same (``benchmarks/farm_simulation.py``). Loading a
model costs many jobs' time, so groups (the same models) are what workers are shared out by; LoRAs and sizes within a
group cost little, and only order its jobs.
"""

from __future__ import annotations

from .estimates import Estimates
from .waiting import Group, Part, Queue
from .warm import Warm
from .workflow import Needs

PATIENCE_S = 60.0  #: how long a group may have less than its share of workers, and a part be overtaken by others
_STAY = 4  #: a worker keeps its models for so many times as long as loading took, which so costs a fifth at most


def choose(
    queue: Queue, warm: Warm, workers: int, now: float, estimates: Estimates, patience_s: float = PATIENCE_S
) -> Part | None:
    """The part of the queue whose oldest job a free worker takes; None: it is better left free for now.

    Args:
        queue: what waits. When groups fall short of their share is kept in it.
        warm: what the worker has loaded.
        workers: how many there are.
        now: the time.
        estimates: how long jobs take.
        patience_s: see :data:`PATIENCE_S`.
    """
    groups = dict(queue.groups())
    if not groups:
        return None
    share = max(1, workers // len(groups))
    for group in groups.values():
        if len(group.running) >= share:
            group.short_since = None
        elif group.short_since is None:
            group.short_since = now
    short = [
        models
        for models, group in groups.items()
        if group.short_since is not None and now - group.short_since >= patience_s
    ]
    loaded = [models for models in warm.models if models in groups]
    overdue = [
        models for models in short if models in loaded or _is_due(groups[models], warm, now, estimates, patience_s)
    ]
    if overdue:
        chosen = min(overdue, key=lambda models: groups[models].short_since or now)
    elif loaded:
        chosen = loaded[0]
    else:
        chosen = max(groups, key=lambda models: _gain(groups[models], now, estimates))
        if _gain(groups[chosen], now, estimates) <= 0:
            return None
    return _part(groups[chosen], warm if chosen in loaded else None, now, patience_s)


def expected(part: Part, warm: Warm, estimates: Estimates) -> float:
    """How long the next job of a part would take on a worker."""
    return estimates.run(part.needs) + (0.0 if part.needs.models in warm.models else estimates.load(part.needs))


def _is_due(group: Group, warm: Warm, now: float, estimates: Estimates, patience_s: float) -> bool:
    """Whether a worker turns to a group that has waited: where it helps, and it stayed long enough with what it has."""
    return _gain(group, now, estimates) > 0 and now - warm.since >= max(
        patience_s, _STAY * estimates.load(_any_needs(group))
    )


def _any_needs(group: Group) -> Needs:
    return next(part.needs for part in group.parts.values() if len(part))


def _gain(group: Group, now: float, estimates: Estimates) -> float:
    """How much later those that run it would be done with what waits than a worker that first loads its models."""
    if not group.running:
        return float("inf")
    work = sum(len(part) * estimates.run(part.needs) for part in group.parts.values() if len(part))
    work += sum(max(0.0, end - now) for end in group.running.values())
    needs = _any_needs(group)
    return work / len(group.running) - estimates.load(needs) - estimates.run(needs)


def _part(group: Group, warm: Warm | None, now: float, patience_s: float) -> Part:
    """What is as the worker has it; what was overtaken too long; what it has run before; what there is most of."""
    parts = [part for part in group.parts.values() if len(part)]
    overdue = [part for part in parts if now - part.since() >= patience_s]
    if overdue:
        return min(overdue, key=Part.since)
    if warm is not None:
        same = [part for part in parts if part.needs.variant == warm.variant]
        known = [part for part in parts if warm.has_run(part.needs)]
        if same or known:
            return max(same or known, key=len)
    return max(parts, key=len)
