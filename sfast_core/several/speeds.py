"""Measures how fast devices and the links between them are."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from ..runtime.backend import Backend
from ..sharding import Speeds
from .copy_graphs import CopyGraphs
from .links import Links

_CPU = Speeds(operations=1e11, memory_bytes=1e10, link_bytes=1e10, exchange_s=0.0)  #: for tests: sharing work pays
_LAUNCHES_S = 4e-5  #: what an exchange adds by cutting a device's graph in two
_SIDE = 4096  #: of the square matrices whose product is timed
_COPIED_BYTES = 1 << 26
_ROUNDS = 5
_MANY, _FEW = range(2)  #: the numbers of the two exchanges that are timed, of much and of little


def measured(links: Links, backend: Backend | None, dtype: torch.dtype) -> Speeds:
    """The speed of the first device, and of an exchange between all; it takes some milliseconds.

    Args:
        links: between the devices.
        backend: the first device's, if programs run as graphs.
        dtype: in which products are computed.
    """
    if not links.gpus:
        return _CPU
    devices = links.devices
    sending = links if backend is None else CopyGraphs(links, backend)
    with torch.inference_mode(False), torch.no_grad(), torch.cuda.device(devices[0]):
        matrix = torch.zeros(_SIDE, _SIDE, dtype=dtype, device=devices[0])
        product_s = _seconds(lambda: torch.mm(matrix, matrix), devices)
        bytes_each = [torch.zeros(_COPIED_BYTES, dtype=torch.uint8, device=device) for device in devices]
        there = [[[mine if other is mine else torch.empty_like(mine)] for other in bytes_each] for mine in bytes_each]
        copy_s = _seconds(lambda: there[0][1][0].copy_(bytes_each[0]), devices)
        many = [[x] for x in bytes_each]
        exchange_s = _seconds(lambda: sending.receive(sending.send(_MANY, many, there)), devices)
        small, few = [[x[:1024]] for x in bytes_each], [[[x[:1024]] for (x,) in each] for each in there]
        least_s = _seconds(lambda: sending.receive(sending.send(_FEW, small, few)), devices)
        if isinstance(sending, CopyGraphs):
            sending.release()
    received = _COPIED_BYTES * (len(devices) - 1)
    return Speeds(
        operations=2 * _SIDE**3 / product_s,
        memory_bytes=2 * _COPIED_BYTES / copy_s,
        link_bytes=received / max(exchange_s - least_s, 1e-9),
        exchange_s=least_s + _LAUNCHES_S,
    )


def _seconds(run: Callable[[], object], devices: Sequence[torch.device]) -> float:
    """The seconds of one run, as the mean of several in a row."""
    run()
    for device in devices:
        torch.cuda.synchronize(device)
    start = time.perf_counter()
    for _ in range(_ROUNDS):
        run()
    for device in devices:
        torch.cuda.synchronize(device)
    return (time.perf_counter() - start) / _ROUNDS
