"""Copies of weights that are away, kept on the device as long as the host promises that nobody writes to them.

A part of the memory for streaming is worth more so. A small weight costs more time per copy than its bytes take, and
while a model computes what follows its last weights (the outermost blocks of a UNet), nothing else could be copied.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable
from typing import Any, NamedTuple

import torch

from ...capture.live import Form
from ...weights import Weight
from ...weights.arriving import Arriving
from ..holding import Holding

SMALL_BYTES = 64 << 10  #: weights up to this size are kept first


class _Copy(NamedTuple):
    tensor: torch.Tensor
    made_from: tuple[Any, ...]
    period: Hashable


class KeptWeights(Holding):
    """The copies for all programs of one store."""

    def __init__(self) -> None:
        super().__init__()
        self.users: weakref.WeakSet[Any] = weakref.WeakSet()  #: the owners of graphs that read them
        self._copies: dict[Weight, _Copy] = {}

    def __contains__(self, weight: Weight) -> bool:
        return weight in self._copies

    def address(self, weight: Weight) -> int | None:
        """The address of a weight's copy, or None."""
        copy = self._copies.get(weight)
        return None if copy is None else copy.tensor.data_ptr()

    def tensor(
        self, weight: Arriving, device: torch.device, period: Hashable, settle: Callable[[], None]
    ) -> torch.Tensor:
        """A weight's copy, as the program reads it.

        Args:
            weight: the weight as it is now.
            device: where the copy is to be.
            period: of the host's promise that nobody writes to it. In another period it is copied anew, into the same
                memory.
            settle: waits until nobody reads copies.
        """
        made_from = (weight.data_ptr(), weight.functions, weight.computed_in)
        known = self._copies.get(weight.weight)
        if (
            known is not None
            and known.period == period
            and known.made_from == made_from
            and known.tensor.device == device
        ):
            return known.tensor
        settle()
        with torch.inference_mode(False), torch.no_grad():
            made = weight.brought(device)
            again = known is not None and Form.of(known.tensor) == Form.of(made)
            tensor = known.tensor if known is not None and again else Form.of(made).empty()
            tensor.copy_(made)
        self._copies[weight.weight] = _Copy(tensor, made_from, period)
        self.bytes = sum(copy.tensor.nbytes for copy in self._copies.values())
        return tensor

    def release(self) -> None:
        """Give the memory back."""
        super().release()
        self._copies, self.bytes = {}, 0
