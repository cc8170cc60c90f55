"""Copies tensors from each device to all others, in both directions at once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from .plan import launching_on

Tensors = Sequence[torch.Tensor]


@dataclass
class OnTheWay:
    """Copies that have been launched.

    Attributes:
        sent: the tensors that are copied, kept alive until they have arrived.
        done: events, each with the device that has to wait for it.
    """

    sent: list[Tensors]
    done: list[tuple[int, torch.cuda.Event]]


class Links:
    """Copies between devices, on streams of their own where these are GPUs.

    Each device sends to one other after another, in such turns that each also receives from one at a time: receiving
    from several at once was slower (``docs/notes/0036-exchanges-between-gpus.md``).

    Args:
        devices: in order. A CPU may come several times.
    """

    def __init__(self, devices: Sequence[torch.device]) -> None:
        self.devices = list(devices)
        self.gpus = devices[0].type == "cuda"
        self._sending = [torch.cuda.Stream(device) for device in devices] if self.gpus else []
        self._getting = [torch.cuda.Stream(device) for device in devices] if self.gpus else []

    def send(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay:
        """Copy what each device sends to all others, after what has been launched so far.

        Until :meth:`receive` nobody may write to what is sent, or read where it is copied to.

        Args:
            site: the number of the exchange within the program.
            sent: for each device, its tensors.
            into: for each receiving device and each sending one, where the tensors go. What lies there already isn't
                copied.
        """
        self.put_in_place(sent, into)
        ready = [torch.cuda.current_stream(device).record_event() for device in self.devices] if self.gpus else []
        done = self.copies(sent, into, ready)
        return OnTheWay(list(sent), [(index, event) for index in range(len(self.devices)) for event in done])

    def receive(self, on_the_way: OnTheWay) -> None:
        """Make each device wait for its copies. From then on it may read what it got and write to what it sent."""
        for index, event in on_the_way.done:
            torch.cuda.current_stream(self.devices[index]).wait_event(event)

    def put_in_place(self, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> None:
        """On each device, copy its own tensors to their place among those that it receives."""
        for index, device in enumerate(self.devices):
            with launching_on(device):
                _copy(sent[index], into[index][index])

    def copies(
        self, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]], ready: Sequence[torch.cuda.Event]
    ) -> list[torch.cuda.Event]:
        """Copy what each device sends to all others.

        Args:
            sent: see :meth:`send`.
            into: see :meth:`send`.
            ready: the events that each device's copies wait for; empty on a CPU.

        Returns:
            Events that mark the end of the copies; empty on a CPU.
        """
        for stream in (*self._sending, *self._getting):
            for event in ready:
                stream.wait_event(event)
        count = len(self.devices)
        for step in range(1, count):
            for one in range(count):
                other = (one + step) % count
                with self._between(one, other):
                    _copy(sent[one], into[other][one])
        for out, arriving in zip(self._sending, self._getting, strict=True):
            out.wait_stream(arriving)
        return [out.record_event() for out in self._sending]

    @contextlib.contextmanager
    def _between(self, one: int, other: int) -> Iterator[None]:
        """Make this pair's streams current: a copy makes both devices' current streams wait, not those that compute."""
        if self.gpus:
            with torch.cuda.stream(self._getting[other]), torch.cuda.stream(self._sending[one]):
                yield
        else:
            yield


def _copy(tensors: Tensors, places: Tensors) -> None:
    for tensor, place in zip(tensors, places, strict=True):
        if tensor.device != place.device or tensor.data_ptr() != place.data_ptr() or tensor.stride() != place.stride():
            place.copy_(tensor, non_blocking=True)
