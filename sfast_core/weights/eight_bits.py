"""The weight of a linear layer in 8 bits, of a model that has it in more: numbers and, for each of its rows, a scale.

Rotated or not.

The module's own tensor stays as it is. What a program reads is made of it, lies beside it, and is made again where it
changes (:mod:`..runtime.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from .packed import Packed
from .plain import Plain
from .ref import WeightRef

NUMBERS, SCALES = "int8", "int8_scales"
ROTATED, ROTATED_SCALES = "int8_rotated", "int8_rotated_scales"
_GROUPS = (256, 64, 16)  #: that kernels rotate by, the one that spreads an outlier furthest first
_FLOATS = (torch.float16, torch.bfloat16, torch.float32)


def group_of(depth: int) -> int:
    """By which group rows of this length are rotated; 0 where by none."""
    return next((group for group in _GROUPS if depth % group == 0), 0)


class EightBits(Plain):
    """The numbers of a weight, (N, K) of int8; of several, one behind the other."""

    beside = True
    rotates = False
    which = 0

    @classmethod
    def both(cls, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers and scales, (N, 1) of float32, of weights (N, K): what :func:`quantise` makes of their rows."""
        joined = tensors[0] if len(tensors) == 1 else Packed.meaning(*tensors)
        if joined.device.type == "meta":
            return joined.new_empty(joined.shape, dtype=torch.int8), joined.new_empty(
                (joined.shape[0], 1), dtype=torch.float32
            )
        from ..ops.quantise.at_once import quantise_at_once

        return quantise_at_once(joined.detach(), group_of(joined.shape[1]) if cls.rotates else 0)

    @classmethod
    def meaning(cls, *tensors: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        """One of both."""
        return cls.both(*tensors)[cls.which]

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """They have to be matrices of floats, of one length of rows and one dtype."""
        if (reason := Packed().why_not(refs)) is not None:
            return reason
        tensor = refs[0].tensor()
        if tensor.dim() != 2 or tensor.dtype not in _FLOATS:
            return f"the weight {refs[0]} is {tensor.dtype} of {tensor.dim()} dimensions, not a matrix of floats"
        if self.rotates and not group_of(tensor.shape[1]):
            return f"the weight {refs[0]} has rows of {tensor.shape[1]}, which no group divides"
        return None


class EightBitsScales(EightBits):
    """Their scales."""

    which = 1


class RotatedEightBits(EightBits):
    """The numbers of a weight whose rows are rotated, as a product's input is to be."""

    rotates = True


class RotatedEightBitsScales(RotatedEightBits):
    """Their scales."""

    which = 1


EIGHT_BITS: dict[str, type[EightBits]] = {
    NUMBERS: EightBits,
    SCALES: EightBitsScales,
    ROTATED: RotatedEightBits,
    ROTATED_SCALES: RotatedEightBitsScales,
}
