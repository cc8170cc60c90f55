"""Captures the copies of each exchange into a CUDA graph.

So the number of launches of an exchange grows with the number of devices, and not with their pairs: on four GPUs the
CPU took longer to launch Flux's copies one by one than the GPUs took for the whole call.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

import torch

from ..runtime.backend import Backend, Replayable
from .links import Links, OnTheWay, Tensors

_log = logging.getLogger(__name__)


class CopyGraphs:
    """Sends like :class:`Links`, in each exchange always from and to the same memory. Its first time is captured.

    Args:
        links: between the devices.
        backend: the first device's.
    """

    def __init__(self, links: Links, backend: Backend) -> None:
        self._links, self._backend = links, backend
        self._exchanges: dict[int, _Exchange] = {}
        self._stream = torch.cuda.Stream(links.devices[0]) if links.gpus else None
        self._by_graphs = True

    def send(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> OnTheWay:
        """As :meth:`Links.send`, by which the copies are made where they can't be captured."""
        if self._by_graphs and site not in self._exchanges:
            self._capture(site, sent, into)
        if not self._by_graphs:
            return self._links.send(site, sent, into)
        self._links.put_in_place(sent, into)
        return self._exchanges[site].launch(self._links.devices, self._stream)

    def receive(self, on_the_way: OnTheWay) -> None:
        """As :meth:`Links.receive`."""
        self._links.receive(on_the_way)

    def release(self) -> None:
        """Release the graphs: the memory that they copy from and to may be freed then."""
        for exchange in self._exchanges.values():
            exchange.graph.release()
        self._exchanges = {}

    def _capture(self, site: int, sent: Sequence[Tensors], into: Sequence[Sequence[Tensors]]) -> None:
        def copies() -> None:
            begun = [torch.cuda.current_stream().record_event()] if self._links.gpus else []
            for event in self._links.copies(sent, into, begun):
                torch.cuda.current_stream().wait_event(event)

        def warm_up() -> None:  # wait for whatever the devices still do with this memory
            for device in self._links.devices if self._links.gpus else ():
                torch.cuda.synchronize(device)
            copies()

        try:
            self._exchanges[site] = _Exchange(self._backend.capture(copies, warm_up=warm_up), self._links)
        except RuntimeError as error:
            _log.debug("copies between devices are launched one by one: %s", error)
            self._by_graphs = False


class _Exchange:
    """The graph of one exchange, with the events that it waits for and that mark its end."""

    def __init__(self, graph: Replayable, links: Links) -> None:
        self.graph = graph
        self._ready = [torch.cuda.Event() for _ in links.devices] if links.gpus else []
        self._done = torch.cuda.Event() if links.gpus else None

    def launch(self, devices: Sequence[torch.device], stream: torch.cuda.Stream | None) -> OnTheWay:
        if stream is None or self._done is None:
            self.graph.replay()
            return OnTheWay([], [])
        for device, ready in zip(devices, self._ready, strict=True):
            ready.record(torch.cuda.current_stream(device))
            stream.wait_event(ready)
        with torch.cuda.stream(stream):
            self.graph.replay()
        self._done.record(stream)
        return OnTheWay([], [(index, self._done) for index in range(len(devices))])
