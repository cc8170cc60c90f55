"""Where the random number generators stand: PyTorch's, Python's and NumPy's, as far as they are the whole process's."""

from __future__ import annotations

import random
import sys
from types import BuiltinFunctionType
from typing import Any

import torch

_DRAWING = ("random", "getrandbits", "seed", "setstate")


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

    def numpy_moved(self) -> bool:
        """Whether numbers were drawn of NumPy's, by this thread or another."""
        return self._foreign[1:] != _foreign()[1:]

    def _now(self) -> list[torch.Tensor]:
        states = [torch.get_rng_state()]
        if self._device.type == "cuda":
            states.append(torch.cuda.get_rng_state(self._device))
        return states


def drawing_functions() -> list[Any]:
    """The functions of C's by which Python's random numbers are drawn: as its file has them, and as their class has."""
    return [random.random, random.getrandbits, *(vars(random.Random.__base__)[name] for name in _DRAWING)]


def draws(function: Any) -> bool:
    """Whether a function of C's, as it is called, draws of Python's random numbers, or sets where they stand."""
    if type(function) is not BuiltinFunctionType or function.__name__ not in _DRAWING:
        return False
    return function.__self__ is getattr(random.getstate, "__self__", None)  # the whole process's


def _foreign() -> list[Any]:
    states: list[Any] = [random.getstate()]
    if "numpy" in sys.modules:
        name, keys, *rest = sys.modules["numpy"].random.get_state()
        states.append((name, keys.tolist(), *rest))
    return states
