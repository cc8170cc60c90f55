"""A head's workers: what each does and has loaded, and when one that ended is replaced."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .fleet import Slot
from .store import Task
from .warm import Warm

_LONGEST_PAUSE_S = 60.0


@dataclass
class Member:
    """One worker."""

    name: str
    slot: Slot
    began: float
    ready: bool = False
    about: dict[str, Any] = field(default_factory=dict)
    warm: Warm = field(default_factory=Warm)
    task: Task | None = None
    task_began: float = 0.0
    task_cold: bool = False
    busy_s: float = 0.0
    done: int = 0


class Members:
    """All of them, by name. One that doesn't start is started again after a pause that doubles, up to a minute."""

    def __init__(self, names: str) -> None:
        self._names = names
        self._number = 0
        self.all: dict[str, Member] = {}
        self._failures: dict[Slot, int] = {}
        self._not_before: dict[Slot, float] = {}
        self.troubles: dict[Slot, str] = {}  #: why a slot has no worker

    def missing(self, slots: list[Slot], now: float) -> list[Slot]:
        """The slots in which a worker should be started now."""
        taken = {member.slot for member in self.all.values()}
        return [slot for slot in slots if slot not in taken and self._not_before.get(slot, now) <= now]

    def add(self, slot: Slot, now: float) -> Member:
        """Note a new worker, which is being started."""
        self._number += 1
        member = Member(f"{self._names}-{self._number}", slot, now)
        self.all[member.name] = member
        return member

    def is_ready(self, member: Member, about: dict[str, Any], now: float) -> None:
        """Note that a worker has started."""
        member.ready, member.about, member.began = True, about, now
        self._failures.pop(member.slot, None)
        self.troubles.pop(member.slot, None)

    def is_lost(self, member: Member, reason: str, now: float) -> None:
        """Note that a worker has ended."""
        del self.all[member.name]
        if not member.ready:
            count = self._failures[member.slot] = self._failures.get(member.slot, 0) + 1
            self._not_before[member.slot] = now + min(_LONGEST_PAUSE_S, 2.0**count)
            self.troubles[member.slot] = reason

    def free(self) -> list[Member]:
        """The workers that can take a job, the oldest first."""
        return [member for member in self.all.values() if member.ready and member.task is None]

    def shown(self, now: float) -> list[dict[str, Any]]:
        """The workers as data for the status."""
        found = []
        for member in self.all.values():
            state = "starting" if not member.ready else "free" if member.task is None else "busy"
            there_s = max(now - member.began, 1e-9) if member.ready else 0.0
            busy_s = member.busy_s + (now - member.task_began if member.task else 0.0)
            found.append(
                {
                    "name": member.name,
                    "machine": member.slot.machine,
                    "state": state,
                    "job": member.task.name if member.task else None,
                    "done": member.done,
                    "busy": round(min(1.0, busy_s / there_s), 3) if there_s else 0.0,
                    **member.about,
                }
            )
        return found
