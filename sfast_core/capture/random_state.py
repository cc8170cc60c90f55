"""Where the random number generators stand: PyTorch's, Python's and NumPy's, as far as they are the whole process's."""

from __future__ import annotations

import random
import sys
from typing import Any

import torch


class RandomState:
    """The state of the generators when this was made, or renewed.

    Args:
        device: whose generator is looked at besides the CPU's.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self.renew()

    def renew(self) -> None:
        """From here on: somebody else may have drawn numbers."""
        self._state, self._foreign = self._now(), _foreign()

    def moved(self) -> bool:
        """Whether numbers were drawn of PyTorch's."""
        return any(not torch.equal(a, b) for a, b in zip(self._state, self._now(), strict=True))

    def foreign_moved(self) -> bool:
        """Whether numbers were drawn of Python's or NumPy's, by this thread or another."""
        return self._foreign != _foreign()

    def _now(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states


def _foreign() -> list[Any]:
    states: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states.append((name, keys.tolist(), *rest))
    return states
