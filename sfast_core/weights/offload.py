"""How a host keeps weights away from the model's device: which, and what it computes of each at its use."""

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
    """How a program can take one of its weights if that has to be brought to the device.

    Attributes:
        why_not: why it can't be brought, or None.
        dtype: in which the program reads it, so that the host's functions may give it that. None: the weight's own.
    """

    why_not: str | None = None
    dtype: torch.dtype | None = None


class Held:
    """A host's function of a weight that may be captured into a graph: all else that it reads stays in memory as long
    as this object does.

    Some functions, such as ComfyUI's, log an error of PyTorch's and go on without what they should have done. Here they
    raise it: a graph would otherwise lack that for as long as it lives.
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
    """A mode in which operators run as ever, and the first error of one is kept."""

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
    """A host that moves weights off the device and does nothing else to them. Hosts that do more derive from this."""

    _period: object | None = None

    def away(self, ref: WeightRef, tensor: torch.Tensor, device: torch.device) -> bool:
        """Whether a weight, now ``tensor``, has to be brought to ``device`` to be read there."""
        return tensor.device != device

    def functions(self, ref: WeightRef) -> tuple[Computed, ...]:
        """What the host computes of a weight at each use, on the device, in order; such a weight is always brought.

        Raises:
            WeightsElsewhere: one of the functions isn't the host's own.
        """
        return ()

    def held(self, functions: tuple[Computed, ...], device: torch.device) -> tuple[Computed, ...]:
        """The same functions, each as :class:`Held` if its host's memory allows that."""
        return functions

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        """A function that tells whether :meth:`functions` still gives the same for all of these, computing the same."""
        return _the_same

    def pin(self, ref: WeightRef, tensor: torch.Tensor) -> bool:
        """Have a weight's memory pinned, if the host can. Returns whether it is pinned."""
        return tensor.is_pinned()

    def begin(self) -> None:
        """A sampling begins: the host promises that nobody writes to weights that are away until :meth:`end`."""
        self._period = object()

    def end(self) -> None:
        """The sampling and its promise are over."""
        self._period = None

    def period(self) -> Hashable:
        """Equal at two calls between which nobody writes to weights that are away. None: that isn't known."""
        return self._period

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """A function, called before each call, that tells whether those of these tensors that are pinned now still are.

        What PyTorch pins stays pinned. A host that unpins memory which it keeps overrides this.
        """
        return _the_same


def _the_same() -> bool:
    return True
