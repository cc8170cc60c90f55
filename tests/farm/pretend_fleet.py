"""A fleet whose workers are entries in a table: what happens to them is what a test says."""

from __future__ import annotations

import json
from typing import Any

from sfast_core.farm.fleet import Event, Slot
from sfast_core.farm.store import Task


class PretendFleet:
    """``started``, ``given`` and ``ended`` keep what was asked of it; ``tell`` makes something happen."""

    def __init__(self, count: int) -> None:
        self.places = [Slot("here", number) for number in range(count)]
        self.started: dict[str, Slot] = {}
        self.given: dict[str, Task] = {}
        self.ended: list[str] = []
        self.told: list[Event] = []
        self.closed = False

    def slots(self) -> list[Slot]:
        return self.places

    def start(self, slot: Slot, worker: str) -> None:
        self.started[worker] = slot

    def run(self, worker: str, task: Task, limit_s: float) -> None:
        assert worker not in self.given
        self.given[worker] = task

    def end(self, worker: str) -> None:
        self.ended.append(worker)
        self.given.pop(worker, None)

    def events(self, wait_s: float) -> list[Event]:
        told, self.told = self.told, []
        return told

    def close(self) -> None:
        self.closed = True

    def tell(self, worker: str, event: str, /, **data: Any) -> None:
        self.told.append(Event(worker, event, data))

    def ready(self) -> None:
        for worker in self.started:
            self.tell(worker, "ready", device="pretended")

    def finish(self, worker: str, **outcome: Any) -> Task:
        """Its job is done: by default with one file, made of the prompt."""
        task = self.given.pop(worker)
        files = [("7", 0, ".png", json.dumps(task.prompt).encode())]
        self.tell(worker, "outcome", **{"kind": "done", "files": files, "seconds": 1.0, "log": "", **outcome})
        return task

    def lose(self, worker: str, **why: Any) -> None:
        self.given.pop(worker, None)
        self.started.pop(worker)
        self.tell(worker, "lost", **{"reason": "killed", "log": "its last words", **why})
