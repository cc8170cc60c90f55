"""How a host keeps weights that aren't where the model runs: which these are,
and what it does to each when it uses it.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..machine.operator_mode import OperatorMode
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


class Held:
    """A host's function of a weight, with all else that it reads in memory that stays as long as this does: a graph may
    hold what it computes.

    A function that notes an error of PyTorch's and goes on without what it should have done, as ComfyUI's do, raises it
    here: a graph would be without that for as long as it lives.
    """

    def __init__(self, function: Computed) -> None:
        self._function = function

    def __call__(self, weight: torch.Tensor) -> torch.Tensor:
        with _Errors() as errors:
            result = self._function(weight)
        if errors.first is not None:
            raise errors.first
        return result


class _Errors(OperatorMode):
    """Operators run as they are; the first error of any is kept."""

    first: Exception | None = None

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        try:
            return func(*args, **(kwargs or {}))
        except Exception as error:
            self.first = self.first or error
            raise


class Offload:
    """A host that moves weights off the device and does nothing else to them.

    Hosts that do more have a class of their own.
    """

    _period: object | None = None

    def away(self, ref: WeightRef, tensor: torch.Tensor, device: torch.device) -> bool:
        """Whether a weight, which is ``tensor`` now, has to be brought to be read on ``device``."""
        return tensor.device != device

    def functions(self, ref: WeightRef) -> tuple[Computed, ...]:
        """What the host computes of a weight each time it uses it, on the device, one behind the other.

        Such a weight is brought, wherever it is.

        Raises:
            WeightsElsewhere: one of these isn't the host's own.
        """
        return ()

    def held(self, functions: tuple[Computed, ...], device: torch.device) -> tuple[Computed, ...]:
        """The same functions, each as :class:`Held` if its host's memory allows that."""
        return functions

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        """What tells whether :meth:`functions` gives the same for all of these, and these compute the same, as it does
        now.
        """
        return _the_same

    def pin(self, ref: WeightRef, tensor: torch.Tensor) -> bool:
        """Let the memory of a weight be pinned, if the host bears it. Returns whether it is."""
        return tensor.is_pinned()

    def begin(self) -> None:
        """A sampling begins: nobody writes to weights that are away before :meth:`end`."""
        self._period = object()

    def end(self) -> None:
        """It is over: anybody may do to the model what they like."""
        self._period = None

    def period(self) -> Hashable:
        """Equal at two calls between which nobody writes to weights that are away. None: that isn't known."""
        return self._period

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """What tells, as long as these live, whether those that are pinned now are pinned still.

        It is asked at each call, in front of it.

        What PyTorch has pinned stays so. A host that unpins memory which it keeps has an answer of its own.
        """
        return _the_same


def _the_same() -> bool:
    return True
