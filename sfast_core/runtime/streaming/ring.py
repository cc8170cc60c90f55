"""The device memory that weights are streamed through: one ring a device, counted and evicted like graphs."""

from __future__ import annotations

import weakref
from typing import Any

import torch

from ..holding import Holding


class Ring(Holding):
    """A range of device memory. Graphs that write to it must not be replayed once it is released."""

    def __init__(self, device: torch.device, size: int) -> None:
        super().__init__(size)
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  #: those that stream weights through it
        with torch.inference_mode(False):
            self.memory = torch.empty(size, dtype=torch.uint8, device=device)

    def release(self) -> None:
        """Give the memory back."""
        super().release()
        self.memory = self.memory[:0].clone()
