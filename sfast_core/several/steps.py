"""Runs the programs of several devices in step: each runs up to the next exchange, then rows are exchanged, and so on.

A device's program is cut into stretches at its exchanges (:mod:`..runtime.segments`). One thread launches all of them,
ahead of the devices, so that no device waits for the CPU as long as stretches take longer than their launch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

import torch

from ..capture import CaptureError, autocast_off
from ..runtime.segments import Body, Live, Parameters, Stretch, run_stretch
from .exchanges import Exchange, Room, exchanges
from .links import OnTheWay
from .plan import launching_on

Tensors = Sequence[torch.Tensor]


class Run(Protocol):
    """One device's program during one call."""

    body: Body
    exchanges: list[Exchange]
    values: list[Any]

    def stretch(self, index: int) -> None:
        """Compute the stretch at ``index`` among the body's parts."""

    def room(self, exchange: Exchange) -> Room:
        """Memory for the results of an exchange."""

    def passed(self, index: int) -> None:
        """To be told that a part is done: values that nobody reads later may be freed."""


class Sending(Protocol):
    """Exchanges rows between devices: :class:`.links.Links`, or its graphs."""

    def send(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay: ...

    def receive(self, on_the_way: OnTheWay) -> None: ...


def in_step(runs: Sequence[Run], devices: Sequence[torch.device], sending: Sending) -> None:
    """Run all programs to their end.

    Raises:
        CaptureError: their exchanges aren't the same.
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
    """How far a device's program has come."""

    def __init__(self, run: Run) -> None:
        self._run, self._next = run, 0
        self._begins = {exchange.begins: exchange for exchange in run.exchanges}
        self._ends = {exchange.ends: exchange for exchange in run.exchanges}

    def on(self) -> tuple[int, bool] | None:
        """Go on to where an exchange begins or ends. Returns its number and whether it begins; None at the end."""
        parts = self._run.body.parts
        while self._next < len(parts):
            if isinstance(parts[self._next], Live):
                begins = self._begins.get(self._next)
                return (self._ends[self._next].gather.site, False) if begins is None else (begins.gather.site, True)
            self._run.stretch(self._next)
            self.done()
        return None

    def sends(self) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        """The tensors that it sends, and the memory for what each device sends."""
        exchange, values = self._begins[self._next], self._run.values
        sent, room = [values[place] for place in exchange.sent], self._run.room(exchange)
        for place, result in zip(exchange.results, room.results, strict=True):
            values[place] = result
        return sent, room.slots

    def done(self) -> None:
        self._run.passed(self._next)
        self._next += 1


class Kernels:
    """A run of one device's program kernel by kernel.

    Args:
        body: the program's.
        inputs: the call's tensors.
        parameters: the program's weights and constants.
    """

    def __init__(self, body: Body, inputs: Tensors, parameters: Parameters) -> None:
        self.body, self.exchanges = body, exchanges(body)
        self.values = body.values(inputs, parameters)

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
