"""Memory for counters that must be zero when a kernel of a captured graph starts, as cuBLASLt's must.

Each kernel of a graph gets bytes of its own, in memory that is allocated before the capture and used by nothing else as
long as the graph lives. So all counters of a graph can be zeroed at once at its beginning (``csrc/graph.cu``), and not
one by one before each kernel.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

ALIGNMENT = 256  #: bytes
ALL_BYTES = 1 << 18  #: of a graph
MOST_BYTES = 64  #: of a kernel. cuBLASLt's products have one counter of 4; a workspace that holds sums is larger by far


class Counters:
    """The counters' memory of one graph, no byte of which is given away twice.

    It has to be made outside of a capture, and kept as long as the graph.

    Raises:
        RuntimeError: there is no memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(ALL_BYTES, dtype=torch.uint8, device=device)
        self.used = 0  #: bytes that were given away, with what lies between them

    @property
    def device(self) -> torch.device:
        """The memory's device."""
        return self._memory.device

    @property
    def span(self) -> tuple[int, int]:
        """The address, and the bytes from there that were given away: multiples of ALIGNMENT, or 0."""
        return self._memory.data_ptr() if self.used else 0, self.used

    def take(self, count: int) -> torch.Tensor | None:
        """``count`` bytes, aligned to 256. None for 0, for more than MOST_BYTES, and where too little is left."""
        begin, end = self.used, self.used + count
        if not 0 < count <= MOST_BYTES or end > ALL_BYTES:
            return None
        self.used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._memory[begin:end]


_of_capture: ContextVar[Counters | None] = ContextVar("counters", default=None)


def allocate(device: torch.device) -> Counters | None:
    """Counters for a graph that will be captured on ``device``. None where memory ran out: the graph does without."""
    try:
        return Counters(device)
    except RuntimeError:
        return None


@contextmanager
def handed_out(counters: Counters | None) -> Iterator[None]:
    """A context for a capture, in which :func:`take` gives this thread's kernels memory of ``counters``."""
    token = _of_capture.set(counters)
    try:
        yield
    finally:
        _of_capture.reset(token)


def take(count: int, device: torch.device) -> torch.Tensor | None:
    """``count`` bytes for a kernel of the graph that is being captured; None if there is none, or no room."""
    counters = _of_capture.get()
    return None if counters is None or counters.device != device else counters.take(count)
