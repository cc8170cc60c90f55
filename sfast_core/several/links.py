"""Tensors on their way from each device to all others, in both directions at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import torch

from .plan import launching_on

Tensors = Sequence[torch.Tensor]


@dataclass
class OnTheWay:
    """What was sent and isn't there yet.

    Attributes:
        sent: it stays as long.
        done: events, each with the device that has to wait for it.
    """

    sent: list[Tensors]
    done: list[tuple[int, torch.cuda.Event]]


class Links:
    """Copies between devices, by streams of their own where these are GPUs: for each pair, so that none waits for
    another.

    Args:
        devices: in order. A CPU may come several times.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = list(devices)
        self.gpus = devices[0].type == "cuda"
        self._streams: dict[tuple[int, int], tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        if self.gpus:
            for one, other in permutations(range(len(devices)), 2):
                self._streams[one, other] = torch.cuda.Stream(devices[one]), torch.cuda.Stream(devices[other])

    def send(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay:
        """Let each device have what all of them send, behind what was launched before.

        Nobody may write to what is sent, nor read where it is to be, before :meth:`receive`.

        Args:
            site: which exchange of the program it is.
            sent: for each device, its tensors.
            into: for each device that gets them and each that sends, where they are to be. What lies there already
                stays.
        """
        self.put_in_place(sent, into)
        ready = [torch.cuda.current_stream(device).record_event() for device in self.devices] if self.gpus else []
        on_the_way = OnTheWay(list(sent), [])
        for (one, other), event in self.copies(sent, into, ready).items():
            on_the_way.done += [(one, event), (other, event)]
        return on_the_way

    def receive(self, on_the_way: OnTheWay) -> None:
        """From here on each device has what was sent, and may write to what it has sent."""
        for index, event in on_the_way.done:
            torch.cuda.current_stream(self.devices[index]).wait_event(event)

    def put_in_place(self, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> None:
        """On each device, what it sends among what it gets."""
        for index, device in enumerate(self.devices):
            with launching_on(device):
                _copy(sent[index], into[index][index])

    def copies(
        self, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]], ready: Sequence[torch.cuda.Event]
    ) -> dict[tuple[int, int], torch.cuda.Event]:
        """Copy what each device sends to all others.

        Args:
            sent: as :meth:`send` has it.
            into: likewise.
            ready: for each device, behind what it is to be copied. None on a CPU.

        Returns:
            For each pair of devices, when that is done. None on a CPU.
        """
        if not self.gpus:
            for one, other in permutations(range(len(self.devices)), 2):
                _copy(sent[one], into[other][one])
            return {}
        done = {}
        for (one, other), (out, arriving) in self._streams.items():
            for stream in (out, arriving):
                stream.wait_event(ready[one])
                stream.wait_event(ready[other])
            # A copy makes the current streams of both devices wait: not those that compute.
            with torch.cuda.stream(arriving), torch.cuda.stream(out):
                _copy(sent[one], into[other][one])
            out.wait_stream(arriving)
            done[one, other] = out.record_event()
        return done


def _copy(tensors: Tensors, places: Tensors) -> None:
    for tensor, place in zip(tensors, places, strict=True):
        if tensor.device != place.device or tensor.data_ptr() != place.data_ptr() or tensor.stride() != place.stride():
            place.copy_(tensor, non_blocking=True)
