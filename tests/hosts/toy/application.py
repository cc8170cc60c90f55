"""A small application that makes pictures, as a host sees one: models that it moves, changes and calls, and a button
that stops it.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn


class Stopped(Exception):
    """The user has pressed the button."""


class Studio:
    """Has one model, and hands it to whoever listens before each picture."""

    def __init__(self, model: nn.Module) -> None:
        self.model = model
        self.listeners: list[Callable[[nn.Module], None]] = []
        self.stopped = False

    def picture(self, x: torch.Tensor, steps: int = 3) -> torch.Tensor:
        for listener in self.listeners:
            listener(self.model)
        with torch.no_grad():
            for _ in range(steps):
                if self.stopped:
                    raise Stopped
                x = x - 0.1 * self.model(x)
        return x

    def apply_lora(self, strength: float) -> None:
        """Writes into the weights, as hosts do."""
        with torch.no_grad():
            for weight in self.model.parameters():
                weight.add_(strength * torch.sign(weight))
