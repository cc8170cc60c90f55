"""Which rows of a dimension each device has: tokens of a transformer, perhaps of several joined streams."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

Range = tuple[int, int]  #: the first row, and the one behind the last


@dataclass(frozen=True)
class Rows:
    """All rows of a dimension, each on one device, which has its rows in ascending order.

    Attributes:
        ranges: for each device, its rows as ranges.
    """

    ranges: tuple[tuple[Range, ...], ...]

    @classmethod
    def even(cls, size: int, devices: int) -> Rows:
        """``size`` rows on so many devices. Their numbers differ by one at most, the larger come first."""
        ends = list(accumulate(size // devices + (index < size % devices) for index in range(devices)))
        pairs = zip([0, *ends[:-1]], ends, strict=True)
        return cls(tuple(((begin, end),) if begin < end else () for begin, end in pairs))

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several tensors joined along this dimension, where each device joins its own rows of each."""
        devices = range(len(parts[0].ranges))
        offsets = [0, *accumulate(part.size for part in parts)]
        pairs = [list(zip(parts, offsets, strict=False))] * len(devices)
        return cls(
            tuple(
                _merged(
                    [
                        (begin + offset, end + offset)
                        for part, offset in pairs[index]
                        for begin, end in part.ranges[index]
                    ]
                )
                for index in devices
            )
        )

    @property
    def size(self) -> int:
        """The number of all rows."""
        return max(end for ranges in self.ranges for _, end in ranges)

    def count(self, device: int) -> int:
        """The number of a device's rows."""
        return sum(end - begin for begin, end in self.ranges[device])

    def sent(self, device: int) -> Range:
        """The range of a device's own rows among those that it has: all of them."""
        return 0, self.count(device)

    def within(self, begin: int, end: int) -> tuple[Rows, list[Range]]:
        """These rows as those of a tensor of them alone, and where each device has them among its own."""
        found, places = [], []
        for ranges in self.ranges:
            inside = [(max(first, begin), min(last, end)) for first, last in ranges]
            before = sum(max(0, min(last, begin) - first) for first, last in ranges)
            own = [(first - begin, last - begin) for first, last in inside if first < last]
            found.append(tuple(own))
            places.append((before, before + sum(last - first for first, last in own)))
        return Rows(tuple(found)), places

    def in_order(self) -> list[Range]:
        """The ranges that put rows in the order of devices back into their own order."""
        pieces, offset = [], 0
        for begin, end in (each for ranges in self.ranges for each in ranges):
            pieces.append((begin, offset, offset + end - begin))
            offset += end - begin
        return list(_merged([(first, last) for _, first, last in sorted(pieces)]))


@dataclass(frozen=True)
class Stripes(Rows):
    """Rows of an image. Around its own rows a device has some of its neighbours' (a halo), which convolutions read.

    A convolution's result is wrong in the outermost rows of the halo, since their neighbours are missing: each
    convolution spoils a few more of them.

    Attributes:
        own: for each device, the range of its own rows.
        halo: how many of its neighbours' rows it has on either side, as far as there are so many.
    """

    own: tuple[Range, ...]
    halo: int

    @classmethod
    def around(cls, own: tuple[Range, ...], halo: int) -> Stripes:
        """These rows with a halo of so many."""
        size = own[-1][1]
        return cls(tuple(((max(0, begin - halo), min(size, end + halo)),) for begin, end in own), own, halo)

    def scaled(self, times: int, parts: int = 1) -> Stripes | None:
        """``times`` rows for each one, or one for each ``parts``; None where a device's range isn't a multiple."""
        numbers = (*(each for pair in self.own for each in pair), self.halo)
        if any(number * times % parts for number in numbers):
            return None
        own = tuple((begin * times // parts, end * times // parts) for begin, end in self.own)
        return Stripes.around(own, self.halo * times // parts)

    def sent(self, device: int) -> Range:
        """The range of a device's own rows among those that it has, which include the halo."""
        ((first, _),), (begin, end) = self.ranges[device], self.own[device]
        return begin - first, end - first

    def in_order(self) -> list[Range]:
        """One range: the devices' own rows are in order."""
        return [(0, self.size)]


class Shard(NamedTuple):
    """How devices hold a tensor: cut along a dimension."""

    dim: int
    rows: Rows


def _merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            begin = merged.pop()[0]
        merged.append((begin, end))
    return tuple(merged)
