"""How a host keeps weights that aren't where the model runs: which these are, and what it does to each when it uses it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from .ref import WeightRef

Computed = Callable[[torch.Tensor], torch.Tensor]


@dataclass(frozen=True)
class Arrival:
    """What a program says of one of its weights, should it have to be brought.

    Attributes:
        why_not: why it can't be brought, or None.
        dtype: in which the host's functions may leave it; None: the program wants what the module has.
    """

    why_not: str | None = None
    dtype: torch.dtype | None = None


class Offload:
    """A host that moves weights off the device and does nothing else to them. Hosts that do more have a class of their own."""

    def away(self, ref: WeightRef, tensor: torch.Tensor, device: torch.device) -> bool:
        """Whether a weight, which is ``tensor`` now, has to be brought to be read on ``device``."""
        return tensor.device != device

    def functions(self, ref: WeightRef) -> tuple[Computed, ...]:
        """What the host computes of a weight each time it uses it, on the device, one behind the other. Such a weight is brought, wherever it is.

        Raises:
            WeightsElsewhere: one of these isn't the host's own.
        """
        return ()

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        """What tells whether :meth:`functions` gives the same for all of these, and these compute the same, as it does now."""
        return _the_same

    def pin(self, ref: WeightRef, tensor: torch.Tensor) -> bool:
        """Let the memory of a weight be pinned, if the host bears it. Returns whether it is."""
        return tensor.is_pinned()


def _the_same() -> bool:
    return True
