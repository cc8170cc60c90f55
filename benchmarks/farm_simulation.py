"""A farm of any size without a machine: the real queue and scheduler, and a clock that jumps to the next event."""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from statistics import median

from sfast_core.farm.estimates import Estimates
from sfast_core.farm.scheduler import choose, expected
from sfast_core.farm.store import Waiting
from sfast_core.farm.waiting import Part, Queue
from sfast_core.farm.warm import Warm
from sfast_core.farm.workflow import Needs


@dataclass(frozen=True)
class Kind:
    """Jobs that are alike, with their recorded times."""

    needs: Needs
    run_s: float
    load_s: float  #: more for the first after its models were loaded
    switch_s: float  #: more for the first of its LoRAs and sizes


@dataclass(frozen=True)
class Arrival:
    """A job, when it is submitted, and by whom."""

    at: float
    kind: Kind
    user: str = ""


@dataclass
class Outcome:
    """What a simulated farm did."""

    workers: int
    seconds: float = 0.0  #: until the last job was done
    useful_s: float = 0.0  #: of all workers together: computing what was asked for
    at_work_s: float = 0.0  #: of all workers together: that, loading and switching
    loads: int = 0
    switches: int = 0
    idle_s: float = 0.0  #: of all workers together, while jobs waited
    waits: dict[str, list[float]] = field(default_factory=dict)  #: from submission to the result, by user

    @property
    def efficiency(self) -> float:
        """Of the workers' time until the end, the share that computed what was asked for."""
        return self.useful_s / (self.workers * self.seconds) if self.seconds else 1.0

    def wait(self, user: str) -> float:
        """The middle of a user's waits, in seconds."""
        return median(self.waits[user])


Chooser = Callable[[Queue, Warm, int, float, Estimates], Part | None]


def first_come(queue: Queue, warm: Warm, workers: int, now: float, estimates: Estimates) -> Part | None:
    """What a farm without a scheduler does, to compare with: the oldest job, whatever is loaded."""
    parts = [part for _, group in queue.groups() for part in group.parts.values() if len(part)]
    return min(parts, key=Part.oldest) if parts else None


def simulate(arrivals: Sequence[Arrival], workers: int, chooser: Chooser = choose, learned: bool = True) -> Outcome:
    """Run jobs through ``workers`` workers that are cold at first.

    Args:
        arrivals: the jobs, by time.
        workers: how many.
        chooser: the scheduler.
        learned: whether it knows from earlier jobs how long these take; else it learns.
    """
    queue, estimates, outcome = Queue(), Estimates(), Outcome(workers)
    for kind in {arrival.kind for arrival in arrivals} if learned else ():
        estimates.learn(kind.needs, kind.run_s, False)
        estimates.learn(kind.needs, kind.run_s + kind.load_s, True)
    warm = [Warm() for _ in range(workers)]
    free = dict.fromkeys(range(workers))  # in the order in which they became free
    count = itertools.count()
    # when, which came first, what: a worker's number or -1 for an arrival, the job's
    events: list[tuple[float, int, int, int]] = []
    for number, arrival in enumerate(arrivals):
        heapq.heappush(events, (arrival.at, next(count), -1, number))
    now = 0.0
    while events:
        before, (now, _, worker, job) = now, heapq.heappop(events)
        outcome.idle_s += len(free) * (now - before) if len(queue) else 0.0
        if worker < 0:
            queue.add(Waiting(job, arrivals[job].kind.needs, arrivals[job].at), now)
        else:
            free[worker] = None
            queue.ended(arrivals[job].kind.needs, job)
            outcome.waits.setdefault(arrivals[job].user, []).append(now - arrivals[job].at)
            outcome.seconds = now
        if events and events[0][0] == now:
            continue  # what happens at the same time is known at the same time
        for each in list(free):
            part = chooser(queue, warm[each], workers, now, estimates)
            if part is None:
                continue
            taken = queue.take(part, now, expected(part, warm[each], estimates))
            seconds, cold = _begin(arrivals[taken].kind, warm[each], now, outcome)
            estimates.learn(part.needs, seconds, cold)
            del free[each]
            heapq.heappush(events, (now + seconds, next(count), each, taken))
    return outcome


def _begin(kind: Kind, warm: Warm, now: float, outcome: Outcome) -> tuple[float, bool]:
    """How long a job takes on a worker, and whether it has to load models."""
    switched = not warm.has_run(kind.needs)
    cold = warm.use(kind.needs, now)
    outcome.useful_s += kind.run_s
    outcome.loads += cold
    outcome.switches += switched
    seconds = kind.run_s + kind.load_s * cold + kind.switch_s * switched
    outcome.at_work_s += seconds
    return seconds, cold
