"""A fused graph as something to run: tensors in, tensors out, in the layouts that the original forward gives."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import torch

from ..capture.autocast import autocast_off
from ..weights import Arrival, Weight
from .segments import Body

Run = Callable[..., Sequence[torch.Tensor]]


@dataclass(frozen=True)
class Layout:
    """The shape, strides and dtype of one result as the original forward returned it."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device

    def copy(self, tensor: torch.Tensor) -> torch.Tensor:
        """A new tensor of this layout with ``tensor``'s values."""
        return torch.empty_strided(self.shape, self.stride, dtype=self.dtype, device=self.device).copy_(tensor)


@dataclass(frozen=True)
class Program:
    """A rewritten, lowered graph.

    Attributes:
        run: called with the signature's tensors, then the weights, then the constants.
        weights: what it reads of the module, in order.
        constants: tensors that depend on nothing.
        layouts: of the results.
        kept_results: those that the program puts into memory of their own, in their layouts.
        capturable: None, or why this program can't be captured into a CUDA graph.
        kept: what holds tensors that it reads as weights and that no module has.
        arrivals: of each weight, what is to be known should it have to be brought. Empty: none can be.
        body: the same, cut where code runs live; None where none does. Then ``run`` is of no use.
        in_place: which of the results it writes into which of its inputs: they are these very tensors.
        rounded: the dtype of the layers that it computes in 8 bits, which the recorded call doesn't; None where there
            are none.
    """

    run: Run
    weights: tuple[Weight, ...]
    constants: tuple[torch.Tensor, ...]
    layouts: tuple[Layout, ...]
    capturable: str | None = None
    kept: tuple[object, ...] = ()
    arrivals: tuple[Arrival, ...] = ()
    body: Body | None = None
    kept_results: frozenset[int] = frozenset()
    rounded: torch.dtype | None = None
    in_place: Mapping[int, int] = field(default_factory=dict)

    def __call__(self, inputs: Sequence[torch.Tensor], weights: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Compute the results. They may share memory with inputs; :meth:`deliver` makes them the caller's own."""
        with torch.no_grad(), autocast_off():
            return list(self.run(*inputs, *weights, *self.constants))

    def deliver(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """Copies in the layouts that the original forward returns; nothing of the program's memory leaves it.

        What is an input is that.
        """
        pairs = zip(self.layouts, results, strict=True)
        return [
            result if index in self.in_place else layout.copy(result) for index, (layout, result) in enumerate(pairs)
        ]

    def hand_over(self, results: Sequence[torch.Tensor]) -> list[torch.Tensor]:
        """As :meth:`deliver`, of a run whose memory nothing else has: what lies in memory of its own stays there."""
        pairs = zip(self.layouts, results, strict=True)
        return [
            result if index in self.kept_results or index in self.in_place else layout.copy(result)
            for index, (layout, result) in enumerate(pairs)
        ]
