"""The interface between a head and what runs its workers. :mod:`.ray_fleet` implements it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Protocol

from .store import Task


@dataclass(frozen=True, order=True)
class Slot:
    """A place for one worker: a GPU, or a share of a machine without GPUs."""

    machine: str
    number: int


@dataclass(frozen=True)
class Event:
    """Something that happened to a worker. ``kind`` is one of

    - ``ready``: it takes jobs; ``data`` says what is known about it.
    - ``outcome``: its job has ended; ``data`` is what :meth:`.worker.Worker.run` returned.
    - ``use``: ``data`` says how busy it is.
    - ``lost``: it is gone; ``data`` has ``reason``, ``log``, and ``machine_gone`` if its whole machine is gone.
    """

    worker: str
    kind: str
    data: dict[str, Any] = field(default_factory=dict)


class Fleet(Protocol):
    """Runs workers. Its methods return at once, except :meth:`events`."""

    def slots(self) -> list[Slot]:
        """The slots that there are now."""

    def start(self, slot: Slot, worker: str) -> None:
        """Begin to start a worker, under a name that was never used."""

    def run(self, worker: str, task: Task, limit_s: float) -> None:
        """Give it a job."""

    def end(self, worker: str) -> None:
        """End it, whatever it does. No more events come from it."""

    def events(self, wait_s: float) -> list[Event]:
        """What has happened since the last call; waits up to ``wait_s`` for something."""

    def close(self) -> None:
        """End all workers."""
