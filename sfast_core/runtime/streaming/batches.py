"""Neighbouring copies that wait together and are waited for together.

Each point where copies wait for what is computed, or the other way round, costs both some microseconds, in which
nothing is copied: as long as a megabyte takes. SDXL has 1,680 weights, most of which are smaller. Arithmetic, as the
schedule.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from .schedule import Copy

LEAST_BYTES = 16 << 20  #: of a batch
_RING_PART = 8  # or this part of the ring, so that copies still are ahead of what is computed
_FIRST_BYTES = 1 << 20  # of the first, for which the first instruction waits; then each is as large as all before


@dataclass(frozen=True)
class Batch:
    """Copies behind one another.

    Attributes:
        copies: in order.
        after: the instruction behind which they may begin; -1: at once.
        before: the instruction in front of which all must be there: the first reader of any.
    """

    copies: tuple[Copy, ...]
    after: int
    before: int


def batched(copies: Sequence[Copy], sizes: Mapping[int, int], ring_bytes: int) -> tuple[Batch, ...]:
    """A schedule's copies in batches, as large as is worth it. None waits for what only computes when it is there.

    Args:
        copies: in order.
        sizes: bytes, by weight.
        ring_bytes: what they go through.
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
