"""Groups neighbouring copies of a schedule into batches, which wait and are waited for as one.

Each point where copies wait for kernels, or kernels for copies, costs both some microseconds, in which a megabyte could
be copied. SDXL has 1,680 weights, most of which are smaller.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .schedule import Copy

LEAST_BYTES = 16 << 20  #: the usual size of a batch
_RING_PART = 8  # at most one in so many parts of the ring, so that copies still run ahead
_FIRST_BYTES = 1 << 20  # the first batch is small, since the first instruction waits for it; then sizes double


@dataclass(frozen=True)
class Batch:
    """Copies that follow one another.

    Attributes:
        copies: in order.
        after: the instruction after which they may begin; -1: at once.
        before: the instruction before which all must have ended: the first that reads one of them.
    """

    copies: tuple[Copy, ...]
    after: int
    before: int


def batched(copies: Sequence[Copy], sizes: Mapping[int, int], ring_bytes: int) -> tuple[Batch, ...]:
    """A schedule's copies in batches that are as large as is worth it, but never so that a copy waits for an
    instruction which itself waits for the batch.

    Args:
        copies: in order.
        sizes: bytes by weight.
        ring_bytes: the size of the ring.
    """
    batches: list[Batch] = []
    first, bytes_before, own_bytes = 0, 0, 0
    for index, copy in enumerate(copies):
        least = min(LEAST_BYTES, ring_bytes // _RING_PART, max(_FIRST_BYTES, bytes_before))
        if index > first and (own_bytes >= least or copy.after >= copies[first].before):
            batches.append(_batch(copies[first:index]))
            first, bytes_before, own_bytes = index, bytes_before + own_bytes, 0
        own_bytes += sizes[copy.weight]
    if copies:
        batches.append(_batch(copies[first:]))
    return tuple(batches)


def _batch(copies: Sequence[Copy]) -> Batch:
    return Batch(tuple(copies), copies[-1].after, copies[0].before)
