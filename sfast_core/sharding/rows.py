"""Which rows of a dimension each device has: the tokens of a transformer, perhaps of several streams in a row."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import NamedTuple

Range = tuple[int, int]  #: from one row to another, which isn't in it


@dataclass(frozen=True)
class Rows:
    """All rows of a dimension, each on one device. A device has its rows in ascending order, one behind another.

    Attributes:
        ranges: for each device, which rows.
    """

    ranges: tuple[tuple[Range, ...], ...]

    @classmethod
    def even(cls, size: int, devices: int) -> Rows:
        """``size`` rows on so many devices: the larger parts first, none longer than another by more than one."""
        ends = list(accumulate(size // devices + (index < size % devices) for index in range(devices)))
        pairs = zip([0, *ends[:-1]], ends, strict=True)
        return cls(tuple(((begin, end),) if begin < end else () for begin, end in pairs))

    @classmethod
    def joined(cls, parts: Sequence[Rows]) -> Rows:
        """The rows of several tensors that are joined along this dimension: each device joins what it has of each."""
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
        """How many there are in all."""
        return max(end for ranges in self.ranges for _, end in ranges)

    def count(self, device: int) -> int:
        """How many this one has."""
        return sum(end - begin for begin, end in self.ranges[device])

    def sent(self, device: int) -> Range:
        """Which of the rows that a device has are its own, in the order in which it has them."""
        return 0, self.count(device)

    def within(self, begin: int, end: int) -> tuple[Rows, list[Range]]:
        """Those from ``begin`` to ``end``, as rows of a tensor of these alone; and where among its own a device has
        them.
        """
        found, places = [], []
        for ranges in self.ranges:
            inside = [(max(first, begin), min(last, end)) for first, last in ranges]
            before = sum(max(0, min(last, begin) - first) for first, last in ranges)
            own = [(first - begin, last - begin) for first, last in inside if first < last]
            found.append(tuple(own))
            places.append((before, before + sum(last - first for first, last in own)))
        return Rows(tuple(found)), places

    def in_order(self) -> list[Range]:
        """Where, among the rows of all devices one behind another, the rows are in their order: as ranges."""
        pieces, offset = [], 0
        for begin, end in (each for ranges in self.ranges for each in ranges):
            pieces.append((begin, offset, offset + end - begin))
            offset += end - begin
        return list(_merged([(first, last) for _, first, last in sorted(pieces)]))


@dataclass(frozen=True)
class Stripes(Rows):
    """Rows of images: a device has some of its neighbours' too, around its own, which convolutions look at.

    What a convolution makes of the outermost of these isn't right, since what is behind them is missing: each spoils
    some of them more.

    Attributes:
        own: for each device, which rows are its own.
        halo: how many it has of its neighbours', on either side, or as many as there are.
    """

    own: tuple[Range, ...]
    halo: int

    @classmethod
    def around(cls, own: tuple[Range, ...], halo: int) -> Stripes:
        """These, and so many around them."""
        size = own[-1][1]
        return cls(tuple(((max(0, begin - halo), min(size, end + halo)),) for begin, end in own), own, halo)

    def scaled(self, times: int, parts: int = 1) -> Stripes | None:
        """So many rows in the place of each, or one in the place of so many; None where that cuts through one."""
        numbers = (*(each for pair in self.own for each in pair), self.halo)
        if any(number * times % parts for number in numbers):
            return None
        own = tuple((begin * times // parts, end * times // parts) for begin, end in self.own)
        return Stripes.around(own, self.halo * times // parts)

    def sent(self, device: int) -> Range:
        """Likewise."""
        ((first, _),), (begin, end) = self.ranges[device], self.own[device]
        return begin - first, end - first

    def in_order(self) -> list[Range]:
        """A device's own rows are behind those of the one before it."""
        return [(0, self.size)]


class Shard(NamedTuple):
    """How a tensor is held by the devices: cut along a dimension."""

    dim: int
    rows: Rows


def _merged(ranges: Sequence[Range]) -> tuple[Range, ...]:
    merged: list[Range] = []
    for begin, end in ranges:
        if merged and merged[-1][1] == begin:
            begin = merged.pop()[0]
        merged.append((begin, end))
    return tuple(merged)
