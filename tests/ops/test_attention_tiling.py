"""How attention of the CUDA extension is cut into tiles of two heights, or for pairs of blocks."""

from __future__ import annotations

import math

import pytest

from sfast_core.ops.attention.tiling import (
    FEWEST_PAIRED_KEYS,
    GROUP,
    WARPGROUPS,
    Tiling,
    best_tiling,
    rounds,
    tiles,
    tilings,
    warpgroups,
)

MULTIPROCESSORS = 132  # of an H100


def pick(heads: int, tokens: int, head: int = 64) -> Tiling:
    return best_tiling(heads, tokens, tokens, head, MULTIPROCESSORS)


def test_low_tiles_even_out_what_multiprocessors_have_to_do() -> None:
    """SDXL at 1024 x 1024: 640 warpgroups of queries, none of 132 multiprocessors has more than 5."""
    tiling = pick(40, 1024)
    tall, low = tiles(tiling, 40)
    assert warpgroups(tiling, 40, 64) == 640
    assert tall <= MULTIPROCESSORS and tall + low <= 2 * MULTIPROCESSORS


@pytest.mark.parametrize(
    ("heads", "tokens", "head"),
    [
        pytest.param(16, 4096, 40, id="sd15"),  # two full rounds
        pytest.param(132, 192, 64, id="one-round"),
        pytest.param(16, 60000, 64, id="many-rounds"),
    ],
)
def test_all_tiles_are_tall_where_low_ones_gain_nothing(heads: int, tokens: int, head: int) -> None:
    assert tiles(pick(heads, tokens, head), heads)[1] == 0


def test_a_few_queries_are_a_low_tile() -> None:
    assert tiles(pick(1, 128), 1) == (0, 1)


def test_pairs_take_what_is_left_behind_full_rounds() -> None:
    tiling = pick(24, 4608)
    assert tiling.paired == 24 * 24 % MULTIPROCESSORS and tiles(tiling, 24) == (576, 0)
    assert best_tiling(24, 4608, FEWEST_PAIRED_KEYS - 1, 64, MULTIPROCESSORS).paired == 0


@pytest.mark.parametrize("head", WARPGROUPS)
@pytest.mark.parametrize(("heads", "queries"), [(40, 1024), (40, 988), (3, 65), (1, 1), (20, 4096), (7, 1409)])
def test_every_tiling_has_all_queries(heads: int, queries: int, head: int) -> None:
    most, groups = WARPGROUPS[head], math.ceil(queries / GROUP)
    for tiling in tilings(heads, queries, 2048, head, MULTIPROCESSORS):
        assert 1 <= tiling.heads <= heads
        assert tiling.tall * most + tiling.low * (most - 1) >= groups
        assert tiling.heads == heads or tiling.rest_tall * most + tiling.rest_low * (most - 1) >= groups
        assert tiling.paired == 0 or tiles(tiling, heads)[1] == 0


def test_one_multiprocessor_is_two_blocks() -> None:
    """Blocks come in clusters of two, however few multiprocessors there are."""
    tiling = best_tiling(2, 300, 300, 64, 1)
    assert rounds(tiling, 2, 2) <= 2
