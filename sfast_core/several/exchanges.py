"""Finds where a device's program exchanges rows with the other devices: between which parts, and which values."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch

from ..capture import CaptureError
from ..capture.live import Form
from ..runtime.segments import Body, Live
from ..sharding import Arrived, Gather


class Room(NamedTuple):
    """Memory for the results of an exchange, and each device's place in it."""

    results: list[torch.Tensor]
    slots: list[list[torch.Tensor]]


@dataclass(frozen=True)
class Exchange:
    """One exchange.

    Attributes:
        gather: the graph's call.
        begins: the index of the part where rows are sent.
        ends: the index of the part where all rows have to be there.
        sent: the places of the values that are sent, of those whose results are read.
        results: the places of these results.
        forms: shape, strides, dtype and device of these results.
        numbers: their indices among the tensors of the exchange.
    """

    gather: Gather
    begins: int
    ends: int
    sent: tuple[int, ...]
    results: tuple[int, ...]
    forms: tuple[Form, ...]
    numbers: tuple[int, ...]

    def room(self, results: Sequence[torch.Tensor]) -> Room:
        """Memory for its results."""
        devices = range(len(self.gather.counts[0]))
        return Room(list(results), [self.gather.places(results, device, self.numbers) for device in devices])


def exchanges(body: Body) -> list[Exchange]:
    """The exchanges of a program, in order.

    Raises:
        CaptureError: it has other live calls.
    """
    found, begun = [], dict[int, tuple[int, Live]]()
    for index, part in enumerate(body.parts):
        if not isinstance(part, Live):
            continue
        function = part.instruction.function
        if isinstance(function, Gather):
            begun[function.site] = index, part
        elif isinstance(function, Arrived) and function.site in begun:
            begins, gather = begun.pop(function.site)
            found.append(_exchange(function.gather, begins, gather, index, part))
        else:
            raise CaptureError(f"{part.name} runs between its graphs")
    if begun:
        raise CaptureError("rows are sent that nobody waits for")
    return found


def _exchange(gather: Gather, begins: int, sent: Live, ends: int, arrived: Live) -> Exchange:
    assert sent.instruction.values is not None
    places = [place for _, place in sent.instruction.values]
    numbers = tuple(index for _, index in arrived.results if index is not None)
    wanted = tuple(places[number] for number in numbers)
    results = tuple(place for place, _ in arrived.results)
    return Exchange(gather, begins, ends, wanted, results, tuple(arrived.forms), numbers)
