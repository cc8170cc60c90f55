"""What a head asks of whatever runs its workers, and what it hears from there. :mod:`.ray_fleet` is one."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .store import Task


@dataclass(frozen=True, order=True)
class Slot:
    """A place for one worker: a GPU, or one of a number of workers on a machine without."""

    machine: str
    number: int


@dataclass(frozen=True)
class Event:
    """Something about a worker. ``kind``:

    - ``ready``: it takes jobs; ``data`` says what is known of it.
    - ``outcome``: of the job that it was given: what :meth:`.worker.Worker.run` gives.
    - ``use``: how busy it is.
    - ``lost``: it is no more; ``data`` has ``reason``, ``log``, and ``machine_gone`` where its whole machine is.
    """

    worker: str
    kind: str
    data: dict[str, Any] = field(default_factory=dict)


class Fleet(Protocol):
    """Runs workers. Its methods return at once, except :meth:`events`."""

    def slots(self) -> list[Slot]:
        """Where workers belong now."""

    def start(self, slot: Slot, worker: str) -> None:
        """Begin to start a worker of a name that is new."""

    def run(self, worker: str, task: Task, limit_s: float) -> None:
        """Give it a job."""

    def end(self, worker: str) -> None:
        """End it, whatever it does. Nothing more is heard of it."""

    def events(self, wait_s: float) -> list[Event]:
        """What has happened, waiting for something for a while."""

    def close(self) -> None:
        """End all of it."""
