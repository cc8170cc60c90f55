"""Which job a free worker takes, alone and over a simulated farm's day."""

from __future__ import annotations

import random

from benchmarks.farm_simulation import Arrival, Kind, first_come, simulate
from sfast_core.farm.estimates import LOAD_S, RUN_S, Estimates
from sfast_core.farm.scheduler import choose, expected
from sfast_core.farm.store import Waiting
from sfast_core.farm.waiting import Queue
from sfast_core.farm.warm import Warm
from sfast_core.farm.workflow import Needs

A, B, C = (Needs((model,), (), ("512",)) for model in "abc")


def queue_of(*needs: Needs, submitted: float = 0.0) -> Queue:
    queue = Queue()
    for number, each in enumerate(needs):
        queue.add(Waiting(number, each, submitted), submitted)
    return queue


def warmed(*needs: Needs, now: float = 0.0) -> Warm:
    warm = Warm()
    for each in needs:
        warm.use(each, now)
    return warm


def taken(queue: Queue, warm: Warm, workers: int = 2, now: float = 0.0) -> Needs | None:
    part = choose(queue, warm, workers, now, Estimates())
    if part is not None:
        queue.take(part, now, expected(part, warm, Estimates()))
        warm.use(part.needs, now)
    return None if part is None else part.needs


def test_a_worker_stays_with_what_it_has() -> None:
    queue = queue_of(B, B, B, A)
    assert taken(queue, warmed(A)) == A and taken(queue, warmed(C)) == B


def test_of_what_it_has_it_takes_the_lora_and_size_that_it_ran() -> None:
    other, small = Needs(A.models, ("lora",), A.sizes), Needs(A.models, (), ("64",))
    queue = queue_of(other, other, small, A)
    warm = warmed(small, A)
    assert [taken(queue, warm) for _ in range(4)] == [A, small, other, other]
    assert taken(queue_of(other, A, A), Warm()) == A, "what there is most of"


def test_a_part_is_not_overtaken_for_ever() -> None:
    other = Needs(A.models, ("lora",), A.sizes)
    queue, warm = queue_of(other, *[A] * 20), warmed(A)
    found = [taken(queue, warm, now=5.0 * step) for step in range(15)]
    assert found.count(other) == 1 and found.index(other) == 12, "after a minute, once"


def test_a_group_gets_its_share_of_workers() -> None:
    queue = queue_of(*[A] * 100, *[B] * 100)
    workers = [warmed(A) for _ in range(4)]
    for worker in workers:
        assert taken(queue, worker, 4) == A
    for step in range(1, 30):
        for worker in workers:
            models, queued = next((models, group) for models, group in queue.groups() if models == worker.models[0])
            queue.ended(Needs(models), next(iter(queued.running)))
            assert taken(queue, worker, 4, now=step * 10.0) is not None
    assert sorted(worker.models[0] for worker in workers) == [("a",), ("a",), ("b",), ("b",)]


def test_it_loads_another_model_only_where_that_is_sooner() -> None:
    """The first is done after loading and running; then one by one."""
    one_more = LOAD_S + RUN_S
    queue = queue_of(A, A)
    assert taken(queue, Warm()) == A and taken(queue, Warm()) == A, "at first all have to load"
    few = int(LOAD_S / RUN_S)
    queue, warm = queue_of(*[A] * (few + 2)), Warm()
    assert taken(queue, warm) == A
    queue.ended(A, 0)
    assert taken(queue, warm, now=one_more) == A and len(queue) == few
    assert taken(queue, Warm(), now=one_more) is None, "the one that has it will be done sooner"
    queue.add(Waiting(99, A, 0.0), 0.0)
    assert taken(queue, Warm(), now=one_more) == A


def test_jobs_wait_until_their_time() -> None:
    queue = Queue()
    queue.add(Waiting(1, A, 0.0, not_before=10.0), 0.0)
    assert len(queue) == 1 and taken(queue, Warm(), now=5.0) is None
    queue.ripen(10.0)
    assert taken(queue, Warm(), now=10.0) == A and len(queue) == 0
    queue.ended(A, 1)
    assert list(queue.groups()) == []


def test_times_are_learned() -> None:
    estimates = Estimates()
    assert (estimates.run(A), estimates.load(A)) == (RUN_S, LOAD_S)
    for seconds in (1.0, 2.0, 50.0):
        estimates.learn(A, seconds, False)
    estimates.learn(A, 8.0, True)
    larger = Needs(A.models, (), ("1024",))
    assert (estimates.run(A), estimates.run(larger), estimates.load(A), estimates.run(B)) == (2.0, 2.0, 6.0, RUN_S)


def test_a_simulated_farm() -> None:
    """Everything is done once; few models are loaded; who submits little waits little."""
    kinds = [
        Kind(Needs((f"m{model}",), (), (size,)), run, 20.0, 1.0)
        for model in range(4)
        for size, run in (("512", 1.0), ("768", 2.5))
    ]
    chance = random.Random(0)
    arrivals = [
        Arrival(at, kind, "studio")
        for at, kind in ((chance.uniform(0, 300), chance.choice(kinds)) for _ in range(60))
        for _ in range(20)
    ]
    arrivals.append(Arrival(100.0, Kind(Needs(("rare",), (), ("512",)), 1.0, 20.0, 1.0), "guest"))
    arrivals.sort(key=lambda arrival: arrival.at)
    ours, plain = simulate(arrivals, 8), simulate(arrivals, 8, first_come)
    assert all(sum(map(len, outcome.waits.values())) == len(arrivals) for outcome in (ours, plain))
    assert (
        ours.useful_s == plain.useful_s
        and 0 < ours.loads < plain.loads / 3
        and ours.efficiency > max(0.7, plain.efficiency)
    )
    assert ours.wait("guest") < 100 and ours.wait("studio") < plain.wait("studio")
    again = simulate(arrivals, 8)
    assert (again.seconds, again.loads, again.waits) == (ours.seconds, ours.loads, ours.waits)
    assert simulate(arrivals, 8, learned=False).efficiency > 0.6
