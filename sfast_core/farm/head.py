"""The head of a farm: gives jobs of the queue to workers, writes what they make, and keeps going whatever ends.

Everything that must last is in the store before it is acted on, so that a head that is killed begins again where it
was.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from . import results, shown, workflow
from .errors import FarmError
from .estimates import Estimates
from .fleet import Event, Fleet
from .members import Member, Members
from .scheduler import choose, expected
from .store import Store, Submitted, Task
from .waiting import Queue
from .writing import FULL, Writing, Written

LIMIT_S = 3600.0  #: a job that takes longer is stopped
_GRACE_S = 30.0  #: a worker that doesn't stop such a job by itself is ended after so much more
_RETRY_S = 5.0  #: the pause of the whole queue when the disk is full, and of a job whose folder can't be written to


class Head:
    """The head of a farm; see the module.

    Args:
        store: the queue.
        fleet: runs the workers.
        root: the folder for all results.
        say: is told what an operator wants to know, line by line.
        limit_s: the longest that a job may take.
        clock: gives the time in seconds.
    """

    def __init__(
        self,
        store: Store,
        fleet: Fleet,
        root: Path,
        say: Callable[[str], None],
        limit_s: float = LIMIT_S,
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._store = store
        self._fleet = fleet
        self._root = root
        self._say = say
        self._limit_s = limit_s
        self._clock = clock
        self._queue, self._estimates, self._writing = Queue(), Estimates(), Writing()
        self._members = Members(f"w{int(clock() * 1000) % 10**9}")  # folders have workers' names, so none comes twice
        self._new: queue.SimpleQueue[list[int]] = queue.SimpleQueue()
        self._unwritten: list[Written] = []  # results that wait for room on the disk
        self._is_full = False  # whether the disk was full at the last write
        self._held_until = 0.0
        self._stopping: str | None = None
        self._estimates.learn_all(shown.timings(store))
        if count := store.reclaim():
            say(f"{count} jobs that ran when the head ended wait again")
        for job in store.waiting():
            self._queue.add(job, clock())

    def submit(
        self, name: str, prompt: object, seeds: list[int] | None, out: str, extra: dict[str, Any] | None = None
    ) -> Submitted:
        """Queue a workflow, once for each seed; may be called from any thread.

        Raises :class:`FarmError` where it can't be queued.
        """
        checked = workflow.checked(prompt, name)
        if seeds is not None and not workflow.seed_inputs(checked):
            raise FarmError(
                f"{name} has no input called {' or '.join(workflow.SEEDS)} that holds a number, so --seeds would make"
                " the same each time"
            )
        folder = results.folder_inside(self._root, out)
        submitted = self._store.submit(name, checked, [None] if seeds is None else seeds, folder, self._clock(), extra)
        self._new.put(submitted.queued)
        return submitted

    def status(self, batch: int | None = None) -> dict[str, Any]:
        """The farm's status, for :mod:`.status_text`; with ``batch``, of one submission's jobs. From any thread."""
        now = self._clock()
        found = shown.overview(self._store, now, batch)
        troubles = [{"machine": slot.machine, "reason": reason} for slot, reason in self._members.troubles.items()]
        held = "the disk is full: results wait for it" if self._is_full else None
        return {
            **found,
            "workers": self._members.shown(now),
            "troubles": troubles,
            "held": held,
            "stopping": self._stopping,
        }

    def stop(self, at_once: bool) -> None:
        """End :meth:`run`: when the running jobs are done, or at once; then these jobs wait again. From any thread."""
        self._stopping = "now" if at_once else "when what runs is done"

    def run(self) -> None:
        """Run the farm until it is stopped."""
        try:
            while not self._is_done():
                self.tick()
        finally:
            self._fleet.close()
            self._writing.close()
            for written in self._writing.ended():
                self._keep(written)

    def tick(self, wait_s: float = 0.2) -> None:
        """One round: start missing workers, end overdue jobs, give jobs to free workers, handle what has happened."""
        now = self._clock()
        while not self._new.empty():
            for job in self._store.waiting(self._new.get()):
                self._queue.add(job, now)
        self._queue.ripen(now)
        if now >= self._held_until:
            waiting, self._unwritten = self._unwritten, []
            for written in waiting:
                self._writing.begin(written.task, written.files, written.seconds, written.cold)
        if self._stopping is None:
            for slot in self._members.missing(self._fleet.slots(), now):
                self._fleet.start(slot, self._members.add(slot, now).name)
            if not self._is_full and now >= self._held_until:
                self._give_out(now)
        for event in self._fleet.events(min(wait_s, 0.02) if len(self._writing) else wait_s):
            self._hear(event)
        for written in self._writing.ended():
            self._keep(written)
        self._end_overdue()

    def _is_done(self) -> bool:
        if self._stopping == "now":
            return True
        busy = any(member.task for member in self._members.all.values())
        return self._stopping is not None and not busy and not len(self._writing) and not self._unwritten

    def _give_out(self, now: float) -> None:
        for member in self._members.free():
            part = choose(self._queue, member.warm, len(self._members.all), now, self._estimates)
            if part is None:
                continue
            job = self._queue.take(part, now, expected(part, member.warm, self._estimates))
            try:
                task = self._store.lease(job, member.name, now + self._limit_s)
            except FarmError as error:
                self._hold(str(error))
                self._queue.ended(part.needs, job)
                self._new.put([job])
                return
            if task is None:
                self._queue.ended(part.needs, job)
                continue
            member.task, member.task_began, member.task_cold = task, now, member.warm.use(task.needs, now)
            self._fleet.run(member.name, task, self._limit_s)

    def _hear(self, event: Event) -> None:
        member = self._members.all.get(event.worker)
        if member is None:
            return
        now = self._clock()
        if event.kind == "ready":
            self._members.is_ready(member, event.data, now)
            self._say(f"worker {member.name} is ready on {member.slot.machine}")
        elif event.kind == "use":
            member.about = {**member.about, **event.data}
        elif event.kind == "lost":
            self._lose(member, event.data)
        elif member.task is not None:
            self._take(member, member.task, event.data, now)

    def _take(self, member: Member, task: Task, outcome: dict[str, Any], now: float) -> None:
        """Handle the outcome of a worker's job."""
        if outcome["kind"] == "ended":  # its ComfyUI: the worker is replaced with all that it has
            self._fleet.end(member.name)
            self._lose(member, outcome)
            return
        member.task = None
        member.busy_s += now - member.task_began
        self._queue.ended(task.needs, task.id)
        if outcome["kind"] == "done":
            member.done += 1
            self._writing.begin(task, outcome["files"], outcome["seconds"], member.task_cold)
        elif outcome["kind"] == "refused":
            self._say(f"job {task.name} is set aside: {outcome['reason']}")
            self._durably(lambda: self._store.set_aside(task.lease, outcome["reason"], now, outcome["log"]))
        else:
            self._return(task, outcome["reason"], outcome["log"], counts=True)

    def _keep(self, written: Written) -> None:
        """Handle a result that was written, or couldn't be."""
        task, error = written.task, written.error
        if error is None:
            try:
                self._store.complete(task.lease, written.names, written.seconds, written.cold, self._clock())
                self._estimates.learn(task.needs, written.seconds, written.cold)
                self._is_full = False
            except FarmError as full:  # the queue couldn't be written; the files will be written once more
                self._keep_for_later(written, str(full))
        elif error.errno in FULL:
            self._keep_for_later(written, f"{task.folder}: {error}")
        else:
            self._return(task, f"its result can't be written: {error}", "", counts=True, pause_s=_RETRY_S)

    def _keep_for_later(self, written: Written, reason: str) -> None:
        self._unwritten.append(written)
        self._is_full = True
        self._hold(reason)

    def _lose(self, member: Member, why: dict[str, Any]) -> None:
        """Handle the loss of a worker."""
        self._say(f"worker {member.name} on {member.slot.machine} is lost: {why['reason']}")
        self._members.is_lost(member, why["reason"], self._clock())
        if member.task is not None:
            self._queue.ended(member.task.needs, member.task.id)
            self._return(member.task, why["reason"], why.get("log", ""), counts=not why.get("machine_gone", False))

    def _return(self, task: Task, reason: str, log: str, counts: bool, pause_s: float = 0.0) -> None:
        """Put a job back into the queue that ended without a result."""

        def give_back() -> None:
            state = self._store.give_back(task.lease, reason, self._clock(), log, counts, pause_s)
            if state == "aside":
                self._say(f"job {task.name} is set aside: {reason}")
            elif state == "waiting":
                self._new.put([task.id])

        self._durably(give_back)

    def _durably(self, change: Callable[[], object]) -> None:
        """Change the store, now or as soon as the disk has room again."""
        while True:
            try:
                change()
                return
            except FarmError as error:
                self._hold(str(error))
                if self._stopping == "now":  # the job stays leased; the next head puts it back into the queue
                    return
                time.sleep(_RETRY_S)

    def _hold(self, reason: str) -> None:
        self._held_until = self._clock() + _RETRY_S
        self._say(f"nothing is given out for {_RETRY_S:.0f} s: {reason}")

    def _end_overdue(self) -> None:
        now = self._clock()
        for member in list(self._members.all.values()):
            if member.task is not None and now > member.task_began + self._limit_s + _GRACE_S:
                self._fleet.end(member.name)
                self._lose(member, {"reason": f"its job took longer than {self._limit_s:.0f} s, and it didn't stop it"})
