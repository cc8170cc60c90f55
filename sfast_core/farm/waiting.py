"""Jobs that wait, by what has to be warm for them: what choosing the next one looks at, however many there are."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Iterator

from .store import Waiting
from .workflow import Needs


class Part:
    """Waiting jobs with the same needs (models, LoRAs and sizes), the oldest first."""

    def __init__(self, needs: Needs) -> None:
        self.needs = needs
        self.served = float("-inf")  #: when one of it was last given to a worker
        self._jobs: list[tuple[int, float]] = []

    def __len__(self) -> int:
        return len(self._jobs)

    def add(self, job: Waiting) -> None:
        """Add a job."""
        heapq.heappush(self._jobs, (job.id, job.submitted))

    def take(self) -> int:
        """Remove and return the oldest job."""
        return heapq.heappop(self._jobs)[0]

    def oldest(self) -> int:
        """The number of its oldest job."""
        return self._jobs[0][0]

    def since(self) -> float:
        """Since when the part has waited for its turn."""
        return max(self._jobs[0][1], self.served)


class Group:
    """Waiting jobs that need the same models."""

    def __init__(self) -> None:
        self.parts: dict[Hashable, Part] = {}
        #: jobs of it that workers have, with when each will be done, as far as one knows
        self.running: dict[int, float] = {}
        self.short_since: float | None = None  #: since when it has jobs that wait and less than its share of workers

    def __len__(self) -> int:
        return sum(map(len, self.parts.values()))


class Queue:
    """All waiting jobs, and the running ones of each group."""

    def __init__(self) -> None:
        self._groups: dict[tuple[str, ...], Group] = {}
        self._later: list[tuple[float, int, Waiting]] = []

    def add(self, job: Waiting, now: float) -> None:
        """Add a job, which waits from now on or from its ``not_before``."""
        if job.not_before > now:
            heapq.heappush(self._later, (job.not_before, job.id, job))
            return
        group = self._groups.setdefault(job.needs.models, Group())
        group.parts.setdefault(job.needs.variant, Part(job.needs)).add(job)

    def ripen(self, now: float) -> None:
        """Add the jobs whose ``not_before`` has come."""
        while self._later and self._later[0][0] <= now:
            self.add(heapq.heappop(self._later)[2], now)

    def groups(self) -> Iterator[tuple[tuple[str, ...], Group]]:
        """The groups with waiting jobs, by their models, in the order in which they came."""
        return ((models, group) for models, group in self._groups.items() if len(group))

    def take(self, part: Part, now: float, seconds: float) -> int:
        """Take the oldest job of a part, which is given to a worker and expected to take so many seconds."""
        job = part.take()
        part.served = now
        self._groups[part.needs.models].running[job] = now + seconds
        self._tidy(part.needs)
        return job

    def ended(self, needs: Needs, job: int) -> None:
        """Note that a job which was taken has ended, in whatever way."""
        if needs.models in self._groups:
            self._groups[needs.models].running.pop(job, None)
            self._tidy(needs)

    def __len__(self) -> int:
        return sum(map(len, self._groups.values())) + len(self._later)

    def _tidy(self, needs: Needs) -> None:
        group = self._groups[needs.models]
        if not len(group) and not group.running:
            del self._groups[needs.models]
