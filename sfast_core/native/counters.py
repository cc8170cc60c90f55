"""Memory for counters that kernels of a captured graph want zeroed in front of them, as cuBLASLt's do.

Each kernel gets bytes that no other kernel of the graph gets, of memory that is there before the capture begins and
nobody else's as long as the graph lives. So nothing of the graph writes there before the kernel does, and all can be
zeroed at once in front (``csrc/graph.cu``).
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
    """The memory of one graph, of which no byte is given away twice.

    To be made outside of a capture, and to be kept as long as the graph.

    Raises:
        RuntimeError: there is no memory.
    """

    def __init__(self, device: torch.device) -> None:
        self._memory = torch.empty(ALL_BYTES, dtype=torch.uint8, device=device)
        self.used = 0  #: bytes that were given away, with what lies between them

    @property
    def device(self) -> torch.device:
        """Where they are."""
        return self._memory.device

    @property
    def span(self) -> tuple[int, int]:
        """The address, and the bytes from there that were given away: multiples of ALIGNMENT, or 0."""
        return self._memory.data_ptr() if self.used else 0, self.used

    def take(self, count: int) -> torch.Tensor | None:
        """``count`` bytes, aligned to 256; None where that is nothing or much, or too little is left."""
        begin, end = self.used, self.used + count
        if not 0 < count <= MOST_BYTES or end > ALL_BYTES:
            return None
        self.used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._memory[begin:end]


_of_capture: ContextVar[Counters | None] = ContextVar("counters", default=None)


def allocate(device: torch.device) -> Counters | None:
    """Counters for a graph that will be captured on ``device``; None where there is no memory: it does without."""
    try:
        return Counters(device)
    except RuntimeError:
        return None


@contextmanager
def handed_out(counters: Counters | None) -> Iterator[None]:
    """While a graph is captured, let its kernels have ``counters``: those that this thread launches, on that device."""
    token = _of_capture.set(counters)
    try:
        yield
    finally:
        _of_capture.reset(token)


def take(count: int, device: torch.device) -> torch.Tensor | None:
    """``count`` bytes for one kernel of the graph that is captured; None outside of a capture, and where there are none
    to have.
    """
    counters = _of_capture.get()
    return None if counters is None or counters.device != device else counters.take(count)
