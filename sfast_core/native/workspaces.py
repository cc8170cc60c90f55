"""Workspaces for kernels that want theirs zeroed in front of them, as cuBLASLt's do.

While a graph is captured each kernel gets one of its own, so that no other kernel of that graph writes there: what zeroes them can then come
first, all at once (``csrc/graph.cu``).
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

import torch

ALIGNMENT = 256  #: bytes
_ALL_BYTES = 1 << 20  #: of a graph
_LARGEST_BYTES = 1 << 14  #: larger ones hold more than counters


class Workspaces:
    """Memory of one graph, of which no byte is given away twice. It must be gone before the capture ends."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._memory: torch.Tensor | None = None
        self._used = 0

    @property
    def span(self) -> tuple[int, int]:
        """Its address and the bytes of it that were given away."""
        return 0 if self._memory is None else self._memory.data_ptr(), self._used

    def take(self, count: int) -> torch.Tensor | None:
        """``count`` bytes; None where that is much, or nothing is left."""
        begin, end = self._used, self._used + count
        if count > _LARGEST_BYTES or end > _ALL_BYTES:
            return None
        if self._memory is None:
            self._memory = torch.empty(_ALL_BYTES, dtype=torch.uint8, device=self._device)
        self._used = -(-end // ALIGNMENT) * ALIGNMENT
        return self._memory[begin:end]


_of_capture: ContextVar[Workspaces | None] = ContextVar("workspaces", default=None)


@contextmanager
def capturing(device: torch.device) -> Iterator[Workspaces]:
    """To be entered once a capture on ``device`` has begun, and left before it ends: kernels get workspaces of their own."""
    workspaces = Workspaces(device)
    token = _of_capture.set(workspaces)
    try:
        yield workspaces
    finally:
        _of_capture.reset(token)


def workspace(count: int, device: torch.device) -> torch.Tensor:
    """``count`` bytes on ``device``, aligned to 256 bytes, for one kernel."""
    workspaces = _of_capture.get()
    own = workspaces.take(count) if workspaces is not None else None
    return torch.empty(count, dtype=torch.uint8, device=device) if own is None else own
