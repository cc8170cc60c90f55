"""The device memory that weights are streamed through: one ring for all programs of a device, counted and taken away as
graphs are.
"""

from __future__ import annotations

import weakref
from typing import Any

import torch


class Ring:
    """A range of device memory, as :class:`~..graphs.DeviceGraphs` keeps it among its graphs.

    Attributes:
        alive: it may be used. Graphs that write to it mustn't be replayed once it is not.
        busy: it is being used: nobody may evict it.
        bytes: its size.
    """

    def __init__(self, device: torch.device, size: int) -> None:
        self.alive, self.busy, self.bytes = True, False, size
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  #: who brings weights through it
        self.watch: weakref.finalize[..., Any] | None = None
        with torch.inference_mode(False):
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)

    def release(self) -> None:
        """Give the memory back."""
        self.alive = False
        if self.watch is not None:
            self.watch.detach()
        self.memory = self.memory[:0].clone()
