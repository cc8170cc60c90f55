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
from ..runtime.backend import Replayable
from ..runtime.graphs import DeviceGraphs
from ..runtime.rehearsal import Rehearsal
from ..runtime.segments import Body, Kept, Live, Stretch, run_stretch
from ..sharding import Gather
from .links import Links
from .memory import SharedMemory
from .plan import launching_on

Tensors = Sequence[torch.Tensor]


class Run(Protocol):
    """One device's program, on its way through a call."""

    body: Body
    values: list[Any]

    def stretch(self, index: int) -> None:
        """Compute a stretch, the part of the body at ``index``."""

    def results(self, index: int) -> list[torch.Tensor]:
        """Memory for what an exchange gives, one tensor for each of its ``results``."""

    def passed(self, index: int) -> None:
        """A part is done: what nobody reads behind it is of no use any more."""


def in_step(runs: Sequence[Run], devices: Sequence[torch.device], links: Links) -> None:
    """Run all of them through.

    Raises:
        CaptureError: they don't exchange the same.
    """
    ways = [_Way(run, number) for number, run in enumerate(runs)]
    while True:
        met: list[Live | None] = []
        for way, device in zip(ways, devices, strict=True):
            with launching_on(device), torch.no_grad(), autocast_off():
                met.append(way.on())
        sites = {None if live is None else gather_of(live).site for live in met}
        if len(sites) > 1:
            raise CaptureError("the devices' programs don't exchange the same")
        if sites == {None}:
            return
        with torch.no_grad():
            exchanges = [way.exchange() for way in ways]
            links.exchange([sent for sent, _ in exchanges], [into for _, into in exchanges])
        for way in ways:
            way.done()


def gather_of(live: Live) -> Gather:
    """The exchange that a part is."""
    gather = live.instruction.function
    assert isinstance(gather, Gather)
    return gather


def handed(live: Live) -> list[int]:
    """The places of what an exchange is handed, as often as it is, of those whose results anybody reads."""
    assert live.instruction.values is not None
    places = [place for _, place in live.instruction.values]
    return [places[index] for _, index in live.results if index is not None]


def slots(live: Live, results: Sequence[torch.Tensor], devices: int) -> list[list[torch.Tensor]]:
    """Where in an exchange's results the rows of each device are to be."""
    numbers = [index for _, index in live.results if index is not None]
    return [gather_of(live).places(results, device, numbers) for device in range(devices)]


class _Way:
    """How far a device has come."""

    def __init__(self, run: Run, number: int) -> None:
        self._run, self._next = run, 0

    def on(self) -> Live | None:
        """Up to the next exchange; None where there is none."""
        parts = self._run.body.parts
        while self._next < len(parts):
            part = parts[self._next]
            if isinstance(part, Live):
                return part
            self._run.stretch(self._next)
            self._run.passed(self._next)
            self._next += 1
        return None

    def exchange(self) -> tuple[list[torch.Tensor], list[list[torch.Tensor]]]:
        """What it sends, and where it wants what each sends."""
        live, values = self._run.body.parts[self._next], self._run.values
        assert isinstance(live, Live)
        sent, results = [values[place] for place in handed(live)], self._run.results(self._next)
        for (place, _), result in zip(live.results, results, strict=True):
            values[place] = result
        return sent, slots(live, results, len(gather_of(live).counts[0]))

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
        self.body = body
        self.values: list[Any] = [None] * body.size
        for place, tensor in zip(body.given, inputs, strict=True):
            self.values[place] = tensor
        for place, index in body.kept:
            self.values[place] = kept[index]

    def stretch(self, index: int) -> None:
        part = self.body.parts[index]
        assert isinstance(part, Stretch)
        run_stretch(self.body, part, self.values)

    def results(self, index: int) -> list[torch.Tensor]:
        part = self.body.parts[index]
        assert isinstance(part, Live)
        return [form.empty() for form in part.forms]

    def passed(self, index: int) -> None:
        part = self.body.parts[index]
        if isinstance(part, Live):
            for place in part.instruction.last_used:
                if place != part.instruction.result:
                    self.values[place] = None


class Graphs:
    """Runs by CUDA graphs, one for each stretch. The first captures them, and computes that call's results.

    What one stretch leaves to another lies outside the graphs' pool, in memory that is used again behind its last
    reader: a transformer's blocks are alike, and what two of dozens leave is there at a time.

    Args:
        body: the program's.
        kept: its weights and constants, where the graphs are to read them.
        graphs: the device's.
        number: which of the devices it is.
    """

    def __init__(self, body: Body, kept: Kept, graphs: DeviceGraphs, number: int) -> None:
        self.body = body
        self.values: list[Any] = [None] * body.size
        self._graphs, self._number = graphs, number
        self._stretches: dict[int, Replayable] = {}
        self._memory = SharedMemory(body)
        for place, index in body.kept:
            self.values[place] = kept[index]

    @property
    def bytes(self) -> int:
        """What lies outside the pool."""
        return self._memory.bytes + sum(
            self.values[place].nbytes for place in self.body.given if self.values[place] is not None
        )

    def copy_in(self, inputs: Tensors) -> None:
        """Put a call's inputs where the graphs read them."""
        for place, tensor in zip(self.body.given, inputs, strict=True):
            if self.values[place] is None:
                with torch.inference_mode(False):
                    static = torch.empty_like(tensor)
                    static = static.conj() if tensor.is_conj() else static
                    self.values[place] = torch._neg_view(static) if tensor.is_neg() else static
            self.values[place].copy_(tensor)

    def stretch(self, index: int) -> None:
        part = self.body.parts[index]
        assert isinstance(part, Stretch)
        if not part.writes:
            return
        if index not in self._stretches:
            self._stretches[index] = self._capture(index, part)
            return
        self._graphs.backend.enter()
        try:
            self._stretches[index].replay()
        finally:
            self._graphs.backend.leave()

    def results(self, index: int) -> list[torch.Tensor]:
        part = self.body.parts[index]
        assert isinstance(part, Live)
        return self._memory.of_exchange(index, part)

    def passed(self, index: int) -> None:
        self._memory.passed(index)

    def release(self) -> None:
        """Give the memory back."""
        for replayable in self._stretches.values():
            replayable.release()
        self._stretches, self.values = {}, [None] * self.body.size
        self._memory = SharedMemory(self.body)

    def _capture(self, index: int, part: Stretch) -> Replayable:
        values = self.values
        sent = {place: (at, live) for at, live in self._memory.exchanges_behind(index) for place in handed(live)}

        def run() -> None:
            with torch.no_grad(), autocast_off():
                local: list[Any] = [None] * len(values)
                for place in part.reads:
                    local[place] = values[place]
                run_stretch(self.body, part, local)
                for place in part.writes:
                    if values[place] is None:  # the warm-up takes it, outside the capture
                        values[place] = self._place(place, local[place], sent)
                    values[place].copy_(local[place])

        def rehearse() -> None:
            with Rehearsal():
                run()

        return self._graphs.backend.capture(run, warm_up=rehearse)

    def _place(self, place: int, tensor: torch.Tensor, sent: dict[int, tuple[int, Live]]) -> torch.Tensor:
        """Where a stretch leaves a tensor: what is to be exchanged, among the rows that others send."""
        if place not in sent:
            return self._memory.take(place, tensor)
        at, live = sent[place]
        own = slots(live, self._memory.of_exchange(at, live), len(gather_of(live).counts[0]))[self._number]
        return own[handed(live).index(place)]
