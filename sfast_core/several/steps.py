"""Programs of several devices in step: each runs up to where rows are exchanged, then they are, and so on.

A device's program is cut into stretches there (:mod:`..runtime.segments`). One thread launches all of them: what a
device is to do next is there before it is done with what it does, so that none waits for the CPU where stretches take
longer than their launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ..capture import CaptureError, autocast_off
from ..runtime.segments import Body, Kept, Live, Stretch, run_stretch
from .exchanges import Exchange, Room, exchanges
from .links import OnTheWay
from .plan import launching_on

Tensors = Sequence[torch.Tensor]


class Run(Protocol):
    """One device's program, on its way through a call."""

    body: Body
    exchanges: list[Exchange]
    values: list[Any]

    def stretch(self, index: int) -> None:
        """Compute a stretch, the part of the body at ``index``."""

    def room(self, exchange: Exchange) -> Room:
        """Memory for what an exchange gives."""

    def passed(self, index: int) -> None:
        """A part is done: what nobody reads behind it is of no use any more."""


class Sending(Protocol):
    """Whatever exchanges rows between devices: as :class:`.links.Links`."""

    def send(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay: ...

    def receive(self, on_the_way: OnTheWay) -> None: ...


def in_step(runs: Sequence[Run], devices: Sequence[torch.device], sending: Sending) -> None:
    """Run all of them through.

    Raises:
        CaptureError: they don't exchange the same.
    """
    with torch.no_grad(), autocast_off():
        _in_step([_Way(run) for run in runs], devices, sending)


def _in_step(ways: Sequence[_Way], devices: Sequence[torch.device], sending: Sending) -> None:
    on_the_way: dict[int, OnTheWay] = {}
    while True:
        met: list[tuple[int, bool] | None] = []
        for way, device in zip(ways, devices, strict=True):
            with launching_on(device):
                met.append(way.on())
        if len(set(met)) > 1:
            raise CaptureError("the devices' programs don't exchange the same")
        if met[0] is None:
            return
        site, begins = met[0]
        if begins:
            parcels = [way.sends() for way in ways]
            on_the_way[site] = sending.send(site, [sent for sent, _ in parcels], [into for _, into in parcels])
        else:
            sending.receive(on_the_way.pop(site))
        for way in ways:
            way.done()


class _Way:
    """How far a device has come."""

    def __init__(self, run: Run) -> None:
        self._run, self._next = run, 0
        self._begins = {exchange.begins: exchange for exchange in run.exchanges}
        self._ends = {exchange.ends: exchange for exchange in run.exchanges}

    def on(self) -> tuple[int, bool] | None:
        """Up to where an exchange begins or ends: which, and whether it begins; None where there is none."""
        parts = self._run.body.parts
        while self._next < len(parts):
            if isinstance(parts[self._next], Live):
                begins = self._begins.get(self._next)
                return (self._ends[self._next].gather.site, False) if begins is None else (begins.gather.site, True)
            self._run.stretch(self._next)
            self.done()
        return None

    def sends(self) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        """What it sends, and where it wants what each sends."""
        exchange, values = self._begins[self._next], self._run.values
        sent, room = [values[place] for place in exchange.sent], self._run.room(exchange)
        for place, result in zip(exchange.results, room.results, strict=True):
            values[place] = result
        return sent, room.slots

    def done(self) -> None:
        self._run.passed(self._next)
        self._next += 1


class Kernels:
    """A run kernel by kernel.

    Args:
        body: the program's.
        inputs: the call's.
        kept: the program's weights and constants.
    """

    def __init__(self, body: Body, inputs: Tensors, kept: Kept) -> None:
        self.body, self.exchanges = body, exchanges(body)
        self.values: list[Any] = [None] * body.size
        for place, tensor in zip(body.given, inputs, strict=True):
            self.values[place] = tensor
        for place, index in body.kept:
            self.values[place] = kept[index]

    def stretch(self, index: int) -> None:
        part = self.body.parts[index]
        assert isinstance(part, Stretch)
        run_stretch(self.body, part, self.values)

    def room(self, exchange: Exchange) -> Room:
        return exchange.room([form.empty() for form in exchange.forms])

    def passed(self, index: int) -> None:
        part = self.body.parts[index]
        if isinstance(part, Live):
            for place in part.instruction.last_used:
                if place != part.instruction.result:
                    self.values[place] = None
