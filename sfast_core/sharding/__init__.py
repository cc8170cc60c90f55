"""Cuts a call's graph along its rows (the tokens of a transformer, or rows of a picture): makes a graph for each
device, and says what they exchange.

Each value is either whole on every device, or cut along one dimension (:mod:`.rows`). :mod:`.rules` says for each
operation how its result is held if its arguments are cut, :mod:`.cutting` makes the devices' graphs, :mod:`.gather` is
an exchange between them, and :mod:`.costs` estimates the time by arithmetic.
"""

from .costs import Speeds, Times, times
from .cutting import Cut, cut, row_counts
from .delaying import delay
from .gather import Arrived, Gather
from .rows import Rows, Shard, Stripes
from .spelling import computes_in, has_images, prepared
from .stripes import cut_in_stripes

__all__ = [
    "Arrived",
    "Cut",
    "Gather",
    "Rows",
    "Shard",
    "Speeds",
    "Stripes",
    "Times",
    "computes_in",
    "cut",
    "cut_in_stripes",
    "delay",
    "has_images",
    "prepared",
    "row_counts",
    "times",
]
