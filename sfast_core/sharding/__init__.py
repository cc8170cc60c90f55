"""One call's graph cut along its rows, the tokens of a transformer: a graph for each device, and what they exchange.

A value is whole on each device, or cut along one dimension (:mod:`.rows`). :mod:`.rules` says of each operation how
what it makes of rows is held, :mod:`.cutting` makes the devices' graphs, :mod:`.gather` is what they exchange, and
:mod:`.costs` what it takes, by arithmetic.
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
