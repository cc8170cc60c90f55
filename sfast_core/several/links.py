"""Tensors on their way from each device to all others, in both directions at once; how fast devices and links are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import permutations

import torch

from ..sharding import Speeds
from .plan import launching_on

Tensors = Sequence[torch.Tensor]
_CPU = Speeds(operations=1e11, memory_bytes=1e10, link_bytes=1e10, exchange_s=0.0)  #: for tests: what divides work pays
_LAUNCHES_S = 4e-5  #: what the two graphs of a device take, beyond one, between which rows are exchanged
_SIDE = 4096  #: of the matrices that are multiplied to see how fast that is
_COPIED_BYTES = 1 << 26


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
        self._devices = list(devices)
        self._gpus = devices[0].type == "cuda"
        self._streams: dict[tuple[int, int], tuple[torch.cuda.Stream, torch.cuda.Stream]] = {}
        if self._gpus:
            for one, other in permutations(range(len(devices)), 2):
                self._streams[one, other] = torch.cuda.Stream(devices[one]), torch.cuda.Stream(devices[other])

    def send(self, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay:
        """Let each device have what all of them send, behind what was launched before.

        Nobody may write to what is sent, nor read where it is to be, before :meth:`receive`.

        Args:
            sent: for each device, its tensors.
            into: for each device that gets them and each that sends, where they are to be. What lies there already
                stays.
        """
        on_the_way = OnTheWay(list(sent), [])
        if not self._gpus:
            for places in into:
                for tensors, mine in zip(sent, places, strict=True):
                    _copy(tensors, mine)
            return on_the_way
        for index, device in enumerate(self._devices):
            with launching_on(device):
                _copy(sent[index], into[index][index])
        ready = [torch.cuda.current_stream(device).record_event() for device in self._devices]
        for (one, other), (out, arriving) in self._streams.items():
            out.wait_event(ready[one])
            out.wait_event(ready[other])
            # A copy makes the current streams of both devices wait: not those that compute.
            with torch.cuda.stream(arriving), torch.cuda.stream(out):
                _copy(sent[one], into[other][one])
            on_the_way.done.append((one, out.record_event()))
            on_the_way.done.append((other, out.record_event()))
        return on_the_way

    def receive(self, on_the_way: OnTheWay) -> None:
        """From here on each device has what was sent, and may write to what it has sent."""
        for index, event in on_the_way.done:
            torch.cuda.current_stream(self._devices[index]).wait_event(event)

    def speeds(self, dtype: torch.dtype) -> Speeds:
        """Those of the first device and of the slowest link, as they are measured: in some milliseconds.

        Args:
            dtype: that products are computed in.
        """
        if not self._gpus:
            return _CPU
        here = self._devices[0]
        with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(here):
            matrix = torch.zeros(_SIDE, _SIDE, dtype=dtype, device=here)
            product_s = _seconds(lambda: torch.mm(matrix, matrix), self._devices)
            bytes_each = [torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for device in self._devices]
            there = [[[torch.empty_like(each)] for _ in self._devices] for each in bytes_each]
            copy_s = _seconds(lambda: there[0][0][0].copy_(bytes_each[0]), self._devices)
            exchange_s = _seconds(lambda: self.receive(self.send([[x] for x in bytes_each], there)), self._devices)
            small, few = [[x[:1024]] for x in bytes_each], [[[x[:1024]] for (x,) in each] for each in there]
            least_s = _seconds(lambda: self.receive(self.send(small, few)), self._devices)
        received = _COPIED_BYTES * (len(self._devices) - 1)
        return Speeds(
            operations=2 * _SIDE**3 / product_s,
            memory_bytes=2 * _COPIED_BYTES / copy_s,
            link_bytes=received / max(exchange_s - least_s - copy_s, 1e-9),
            exchange_s=least_s + _LAUNCHES_S,
        )


def _copy(tensors: Tensors, places: Tensors) -> None:
    for tensor, place in zip(tensors, places, strict=True):
        if tensor.device != place.device or tensor.data_ptr() != place.data_ptr() or tensor.stride() != place.stride():
            place.copy_(tensor, non_blocking=True)


def _seconds(run: Callable[[], object], devices: Sequence[torch.device], rounds: int = 5) -> float:
    """What one run takes, of several behind one another."""
    run()
    for device in devices:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(rounds):
        run()
    for device in devices:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / rounds
