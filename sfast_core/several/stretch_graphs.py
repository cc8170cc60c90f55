"""Runs one device's program by CUDA graphs, one for each stretch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from ..capture import autocast_off
from ..runtime.backend import Replayable
from ..runtime.captured import static_like
from ..runtime.graphs import DeviceGraphs
from ..runtime.rehearsal import rehearsing
from ..runtime.segments import Body, Parameters, Stretch, run_stretch
from .exchanges import Exchange, Room, exchanges
from .memory import SharedMemory


class StretchGraphs:
    """The graphs of one device's program. The first run captures them.

    What one stretch leaves to another stays where its graph puts it, in the pool that all graphs of the device share:
    no other graph runs in between, and after its last reader the memory is reused. Where the allocator doesn't let
    tensors outlive the capture of a graph (``cudaMallocAsync``), it is copied to memory outside the pool. What is sent
    to other devices is computed right into its place among the rows of all.

    Args:
        body: the program's.
        parameters: its weights and constants, as the graphs read them.
        graphs: the device's.
        number: of the device.
    """

    def __init__(self, body: Body, parameters: Parameters, graphs: DeviceGraphs, number: int) -> None:
        self.body, self.exchanges = body, exchanges(body)
        self.values: list[Any] = [None] * body.size
        self._graphs, self._number = graphs, number
        self._stretches: dict[int, Replayable] = {}
        self._memory = SharedMemory(body, self.exchanges)
        self._sent = {place: exchange for exchange in reversed(self.exchanges) for place in exchange.sent}
        self._given = set(body.given) | {place for place, _ in body.parameters}
        for place, index in body.parameters:
            self.values[place] = parameters[index]

    @property
    def bytes(self) -> int:
        """The size of the memory outside the pool."""
        inputs = (self.values[place] for place in self.body.given)
        return self._memory.bytes + sum(tensor.nbytes for tensor in inputs if tensor is not None)

    def copy_in(self, inputs: Sequence[torch.Tensor]) -> None:
        """Put a call's inputs where the graphs read them."""
        for place, tensor in zip(self.body.given, inputs, strict=True):
            if self.values[place] is None:
                with torch.inference_mode(False):
                    self.values[place] = static_like(tensor)
            self.values[place].copy_(tensor)

    def stretch(self, index: int) -> None:
        part = self.body.parts[index]
        assert isinstance(part, Stretch)
        if not part.writes:
            return
        if index not in self._stretches:
            self._stretches[index] = self._capture(part)
        self._stretches[index].replay()

    def room(self, exchange: Exchange) -> Room:
        return self._memory.of_exchange(exchange)

    def passed(self, index: int) -> None:
        """Free values in the pool that nobody reads any more, so that stretches captured later can use their memory."""
        if not self._memory.passed(index):
            return
        part = self.body.parts[index]
        for place in part.reads if isinstance(part, Stretch) else ():
            if self._memory.last(place) <= index and place not in self._given:
                self.values[place] = None

    def release(self) -> None:
        """Give the memory back."""
        for replayable in self._stretches.values():
            replayable.release()
        self._stretches, self.values = {}, [None] * self.body.size
        self._memory = SharedMemory(self.body, self.exchanges)

    def _capture(self, part: Stretch) -> Replayable:
        read = {place: self.values[place] for place in part.reads}
        left: dict[int, torch.Tensor] = {}

        def compute() -> dict[int, torch.Tensor]:
            local: list[Any] = [None] * len(self.values)
            for place, value in read.items():
                local[place] = value
            with torch.no_grad(), autocast_off():
                run_stretch(self.body, part, local)
            return {place: local[place] for place in part.writes}

        def warm_up() -> None:
            for place, tensor in compute().items():
                if place in self._sent or not self._graphs.backend.keeps_results:
                    left[place] = self._place(place, tensor)

        def run() -> None:
            for place, tensor in compute().items():
                if place in left:
                    left[place].copy_(tensor)
                else:
                    left[place] = tensor

        captured = self._graphs.backend.capture(run, warm_up=rehearsing(warm_up))
        for place, tensor in left.items():
            self.values[place] = tensor
        return captured

    def _place(self, place: int, tensor: torch.Tensor) -> torch.Tensor:
        """The memory in which a stretch leaves a copy of a tensor."""
        exchange = self._sent.get(place)
        if exchange is None:
            return self._memory.take(place, tensor)
        return self._memory.of_exchange(exchange).slots[self._number][exchange.sent.index(place)]
