"""How the CUDA extension's convolution is cut into tiles, what a cluster's blocks share, and which cut is fastest."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

DEPTH = 64  #: of a step: channels of one tap
MOST_BLOCKS = 8  #: of a cluster
#: with fewer the weight is most of what is read, and windows read it in smaller pieces (2x2560x8x8 42 us instead of 36)
FEWEST_WINDOW_PIXELS = 512
TILES = ((128, 160, 0), (128, 160, 1), (256, 160, 0), (256, 128, 0))  #: rows, columns and window

# Microseconds on an H100, from 53 shapes of SD1.5, SDXL and the VAE, each in the cuts that come into question: what the
# estimate puts first is the fastest or within 1% at all but three, of few pixels (5 to 9%).
_PRODUCT_US = 0.365 / (128 * 160 * DEPTH)
_BYTE_US = 1 / 67e3  #: from L2, where all multiprocessors read
_HINDRANCE = (0.25, 0.2)  #: of the loads, to the products beside them; with a window
_WINDOW = 3.5  #: pixels to one of the tile, at sizes where it matters
#: by the result's pixels, of a window's step: with few of them the weight comes from memory, and both who share it wait
#: for both halves
_WAIT_US = 45.0
_FIXED_US = 3.0  #: launch, first loads, last stores
_TILE_US = 5.0  #: of a tile, beside its steps
_JOIN_US = 0.9  #: of sums, for each part of a depth that is shared


class Tiling(NamedTuple):
    """Tiles of ``rows`` pixels and ``columns`` channels; ``sharing_rows * sharing_columns * splits`` in a cluster.

    With a ``window`` (0 or 1) a tile's pixels are brought once for all taps. ``sharing_rows`` blocks have the same
    channels and bring their weights together, ``sharing_columns`` have the same pixels, ``splits`` share a tile's
    depth.
    """

    rows: int
    columns: int
    window: int
    sharing_rows: int
    sharing_columns: int
    splits: int

    @property
    def blocks(self) -> int:
        """Of a cluster."""
        return self.sharing_rows * self.sharing_columns * self.splits

    def clusters(self, pixels: int, channels: int) -> int:
        """How many there are for a result of this size."""
        return -(-pixels // (self.rows * self.sharing_rows)) * -(-channels // (self.columns * self.sharing_columns))


class Convolution(NamedTuple):
    """What decides a convolution's cut: pixels and channels of the result, taps, channels by 64 (and a shortcut's)."""

    pixels: int
    channels: int
    taps: int
    depth_blocks: int
    shortcut_blocks: int  #: 0 where there is none
    same_size: bool  #: 3 x 3 taps, stride 1, padding 1


def tilings(convolution: Convolution) -> Iterator[Tiling]:
    """All that may be worth it, whether or not the GPU has room for it."""
    for rows, columns, window in TILES:
        if window and not (convolution.same_size and convolution.pixels >= FEWEST_WINDOW_PIXELS):
            continue
        parts = convolution.depth_blocks * (1 if window else convolution.taps)
        for sharing_rows in (1, 2):
            for sharing_columns in (1, 2):
                for splits in range(1, min(MOST_BLOCKS, parts) + 1 if rows == 128 else 2):
                    found = Tiling(rows, columns, window, sharing_rows, sharing_columns, splits)
                    if found.blocks <= MOST_BLOCKS:
                        yield found


def estimate_us(tiling: Tiling, convolution: Convolution, fitting: int, multiprocessors: int) -> float:
    """About how long a convolution takes that is cut so, where ``fitting`` such clusters run at the same time."""
    clusters = tiling.clusters(convolution.pixels, convolution.channels)
    rounds = -(-clusters // fitting)
    pixels = tiling.rows / tiling.sharing_columns
    products = tiling.rows * tiling.columns * DEPTH * _PRODUCT_US
    shortcut_steps, shortcut_pixels = -(-convolution.shortcut_blocks // tiling.splits), pixels
    if tiling.window:  # brought once for nine steps, with the rows above and below
        pixels *= _WINDOW / convolution.taps
        steps = -(-convolution.depth_blocks // tiling.splits) * convolution.taps
        shortcut_pixels = tiling.rows  # which blocks don't share there
        if tiling.sharing_rows > 1:
            products += _WAIT_US / convolution.pixels
    else:
        steps = -(-convolution.depth_blocks * convolution.taps // tiling.splits)
    busy = min(1.0, clusters * tiling.blocks / multiprocessors)

    def step_us(brought: float) -> float:
        loads = 2 * DEPTH * (brought + tiling.columns / tiling.sharing_rows) * _BYTE_US * busy
        return max(products, loads) + _HINDRANCE[tiling.window] * loads

    join = _JOIN_US * tiling.splits if tiling.splits > 1 else 0.0
    return _FIXED_US + rounds * (steps * step_us(pixels) + shortcut_steps * step_us(shortcut_pixels) + _TILE_US + join)


def best_tiling(convolution: Convolution, fitting: Callable[[Tiling], int], multiprocessors: int) -> Tiling | None:
    """The fastest by the estimate; ``fitting`` says how many clusters run at the same time. None where none does."""
    timed = [
        (estimate_us(tiling, convolution, count, multiprocessors), tiling)
        for tiling in tilings(convolution)
        if (count := fitting(tiling)) > 0
    ]
    return min(timed)[1] if timed else None
