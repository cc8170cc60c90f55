"""Which elements of its memory a tensor has, and where one tensor's are among another's: what a write to the one is to
the other.

Tensors that share memory each have a size, strides and an offset. A region is that, and all questions are answered by
arithmetic on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch


@dataclass(frozen=True)
class Region:
    """A tensor's elements within its memory, counted in elements."""

    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @classmethod
    def of(cls, tensor: torch.Tensor) -> Region:
        """The region that a tensor occupies."""
        with torch._C.DisableTorchFunction():
            return cls(tuple(tensor.shape), tuple(tensor.stride()), tensor.storage_offset())

    @property
    def steps(self) -> list[tuple[int, int]]:
        """Stride and size of the dimensions that have more than one element, the largest stride first."""
        return sorted(
            ((step, count) for step, count in zip(self.stride, self.size, strict=True) if count != 1), reverse=True
        )

    @property
    def order(self) -> tuple[int, ...]:
        """The dimensions as they lie in memory, the outermost first."""
        return tuple(
            sorted(range(len(self.size)), key=lambda dim: (self.size[dim] != 1, self.stride[dim]), reverse=True)
        )


@dataclass(frozen=True)
class Place:
    """Where a part is in a whole whose elements are put densely, its dimensions in ``order``."""

    order: tuple[int, ...]
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int


def place_in(part: Region, whole: Region) -> Place | None:
    """Where all of ``part``'s elements are in ``whole``; None where some aren't, or ``whole`` has an element twice."""
    frame: list[tuple[int, int]] = []
    for step, count in whole.steps:
        if frame and frame[-1][0] == step * count:
            frame[-1] = (step, frame[-1][1] * count)
        else:
            frame.append((step, count))
    if any(step < inner * count for (step, _), (inner, count) in pairwise(frame)) or (frame and frame[-1][0] == 0):
        return None
    dense = [1] * len(frame)
    for k in range(len(frame) - 2, -1, -1):
        dense[k] = dense[k + 1] * frame[k + 1][1]
    first, rest = [], part.offset - whole.offset
    for step, _ in frame:
        count, rest = divmod(rest, step)
        first.append(count)
    last, strides = list(first), []
    for step, count in zip(part.stride, part.size, strict=True):
        if count == 1:
            strides.append(0)
            continue
        within = [k for k, (outer, _) in enumerate(frame) if 0 < outer <= step and step % outer == 0]
        if not within:
            return None
        k = within[0]
        last[k] += (count - 1) * (step // frame[k][0])
        strides.append(step // frame[k][0] * dense[k])
    if rest or any(low < 0 or high >= count for low, high, (_, count) in zip(first, last, frame, strict=True)):
        return None
    return Place(
        whole.order, part.size, tuple(strides), sum(low * step for low, step in zip(first, dense, strict=True))
    )


def index_of(part: Region, whole: Region) -> tuple[Any, ...] | None:
    """The index that makes ``part`` of ``whole``, of slices and at most one number;
    None where there is no such index.
    """
    gone = len(whole.size) - len(part.size)
    if gone not in (0, 1):
        return None
    for dropped in [None] if gone == 0 else range(len(whole.size)):
        index = _index_without(part, whole, dropped)
        if index is not None:
            return index
    return None


def _index_without(part: Region, whole: Region, dropped: int | None) -> tuple[Any, ...] | None:
    rest = part.offset - whole.offset
    first = [0] * len(whole.size)
    for dim in whole.order:
        if whole.size[dim] != 1 and whole.stride[dim] > 0:
            first[dim], rest = divmod(rest, whole.stride[dim])
    if rest or any(low < 0 or low >= count for low, count in zip(first, whole.size, strict=True)):
        return None
    index: list[Any] = []
    own = iter(zip(part.size, part.stride, strict=True))
    for dim, (count, step) in enumerate(zip(whole.size, whole.stride, strict=True)):
        if dim == dropped:
            index.append(first[dim])
            continue
        size, stride = next(own)
        every = 1 if size == 1 or step == 0 else stride // step
        stop = first[dim] + (size - 1) * every + 1
        if size == 0 or (size != 1 and (step == 0 or stride % step or every < 1)) or stop > count:
            return None
        index.append(
            slice(None)
            if (first[dim], every, stop) == (0, 1, count)
            else slice(first[dim], stop, every if every != 1 else None)
        )
    return tuple(index)


def apart(one: Region, other: Region) -> bool:
    """Whether two regions surely have no element in common: in some digit of an element's place, the strides being the
    base, they are apart.
    """
    if 0 in one.size or 0 in other.size:
        return True
    steps = sorted({step for step, _ in [*one.steps, *other.steps] if step > 0} | {1}, reverse=True)
    if any(outer % inner for outer, inner in pairwise(steps)):
        return False
    digits = [_digits(region, steps) for region in (one, other)]
    if None in digits:
        return False
    return any(high < low2 or high2 < low for (low, high), (low2, high2) in zip(*digits, strict=True))


def _digits(region: Region, steps: list[int]) -> list[tuple[int, int]] | None:
    """From where to where each digit of its places goes; None where one is carried over."""
    spans = {step: 0 for step in steps}
    for step, count in region.steps:
        if step > 0:
            spans[step] += count - 1
    found, rest = [], region.offset
    for k, step in enumerate(steps):
        low, rest = divmod(rest, step)
        high = low + spans[step]
        if k and high >= steps[k - 1] // step:
            return None
        found.append((low, high))
    return found
