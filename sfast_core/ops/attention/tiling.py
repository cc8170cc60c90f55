"""How the CUDA extension's attention is cut into tiles of queries that give all multiprocessors about as much to do.

A multiprocessor takes one tile after the other. 40 heads of 1024 queries in tiles of 192 are 240 tiles, two rounds of
132: as long as 264. In 112 such tiles and 152 of 128 queries no multiprocessor has more than two, and at least one of
them is low.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

GROUP = 64  #: queries of a warpgroup
KEYS = 128  #: of a step
WARPGROUPS = {40: 4, 64: 3}  #: that compute a tall tile, by the size of a head; a low tile has one less
FEWEST_PAIRED_KEYS = 8 * KEYS  #: with fewer a pair saves less than it takes to put its sums together
MANY_ROUNDS = 6  #: where a tile more or less matters little, and the search takes longer

# What a tile takes, in tall tiles of a block's own. H100, 1024 to 4096 keys: a low one 0.76 to 0.85, what two blocks
# share 0.51 to 0.65.
_LOW = 0.8
_PAIRED = 0.55


class Tiling(NamedTuple):
    """The first ``heads`` heads of all images have ``tall`` tall tiles and ``low`` low ones behind them, the others
    ``rest_tall`` and ``rest_low``.

    All tall tiles are taken before the low ones. The last ``paired`` tall tiles are computed by two blocks each, which
    share their keys; then there are no low ones.
    """

    heads: int
    tall: int
    low: int = 0
    rest_tall: int = 0
    rest_low: int = 0
    paired: int = 0


def best_tiling(heads: int, queries: int, keys: int, head: int, multiprocessors: int) -> Tiling:
    """The fastest by :func:`rounds`; of equals the one with the fewest queries that aren't there, and then with all
    tiles tall.

    Args:
        heads: of all images together.
        queries: of a head; keys likewise.
        head: its size, one of :data:`WARPGROUPS`.
        multiprocessors: of the GPU.
    """
    blocks = max(multiprocessors // 2, 1) * 2  # they come in clusters of two
    return min(
        tilings(heads, queries, keys, head, blocks),
        key=lambda tiling: (rounds(tiling, heads, blocks), warpgroups(tiling, heads, head)),
    )


def tilings(heads: int, queries: int, keys: int, head: int, blocks: int) -> Iterator[Tiling]:
    """All that may be worth it, those with all tiles tall first; ``blocks`` is even."""
    most, groups = WARPGROUPS[head], math.ceil(queries / GROUP)
    tall = math.ceil(groups / most)
    yield Tiling(heads, tall)
    left = heads * tall % blocks
    if keys >= FEWEST_PAIRED_KEYS and 0 < left <= blocks // 2:
        yield Tiling(heads, tall, paired=left)
    if heads * tall > MANY_ROUNDS * blocks:
        return

    def with_low(count: int) -> tuple[int, int]:
        return count, math.ceil(max(groups - count * most, 0) / (most - 1))

    for count in range(tall, 0, -1):
        for fewer in range(1, min(most, count) + 1):
            for first in range(1, heads):
                yield Tiling(first, *with_low(count), *with_low(count - fewer))
        yield Tiling(heads, *with_low(count - 1))


def tiles(tiling: Tiling, heads: int) -> tuple[int, int]:
    """How many tall and low tiles ``heads`` heads have."""
    rest = heads - tiling.heads
    return tiling.heads * tiling.tall + rest * tiling.rest_tall, tiling.heads * tiling.low + rest * tiling.rest_low


def warpgroups(tiling: Tiling, heads: int, head: int) -> int:
    """How many warpgroups' queries all tiles together have."""
    tall, low = tiles(tiling, heads)
    return tall * WARPGROUPS[head] + low * (WARPGROUPS[head] - 1)


def rounds(tiling: Tiling, heads: int, blocks: int) -> float:
    """About how long the first block takes, in tall tiles: none has more tiles than it, nor more tall ones."""
    tall, low = tiles(tiling, heads)
    if tiling.paired:
        return (tall - tiling.paired) // blocks + _PAIRED
    own_tall = math.ceil(tall / blocks)
    return own_tall + _LOW * (math.ceil((tall + low) / blocks) - own_tall)
