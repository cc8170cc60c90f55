"""A linear layer's 16 or 32 bit weight rounded to int8, with a scale for each row; the rows rotated before, or not.

The module's own tensor stays as it is. The program reads a copy, which is made again when the weight changes
(:mod:`..runtime.copies`).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ops.needs import FLOATS
from .packed import Packed
from .plain import Plain
from .ref import WeightRef

NUMBERS, SCALES = "int8", "int8_scales"
ROTATED, ROTATED_SCALES = "int8_rotated", "int8_rotated_scales"
_GROUPS = (256, 64, 16)  #: the sizes of groups that kernels rotate; the larger, the further an outlier is spread


def group_of(depth: int) -> int:
    """The size of the groups in which rows of this length are rotated; 0 where no size divides it."""
    return next((group for group in _GROUPS if depth % group == 0), 0)


class EightBits(Plain):
    """The numbers of a weight, (N, K) int8; of several weights, joined along N.

    Attributes:
        rotates: whether rows are rotated before they are rounded.
        which: of numbers and scales the one that this layout gives.
    """

    beside = True
    rotates = False
    which = 0

    @classmethod
    def both(cls, *tensors: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Numbers, and scales (N, 1) float32, of weights (N, K)."""
        joined = tensors[0] if len(tensors) == 1 else Packed.meaning(*tensors)
        if joined.device.type == "meta":
            return joined.new_empty(joined.shape, dtype=torch.int8), joined.new_empty(
                (joined.shape[0], 1), dtype=torch.float32
            )
        from ..ops.quantise.at_once import quantise_at_once

        return quantise_at_once(joined.detach(), group_of(joined.shape[1]) if cls.rotates else 0)

    @classmethod
    def meaning(cls, *tensors: torch.Tensor) -> torch.Tensor:
        """The numbers or the scales."""
        return cls.both(*tensors)[cls.which]

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """They must be matrices of floats with rows of one length and one dtype."""
        if (reason := Packed().why_not(refs)) is not None:
            return reason
        tensor = refs[0].tensor()
        if tensor.dim() != 2 or tensor.dtype not in FLOATS:
            return f"the weight {refs[0]} is {tensor.dtype} of {tensor.dim()} dimensions, not a matrix of floats"
        if self.rotates and not group_of(tensor.shape[1]):
            return f"the weight {refs[0]} has rows of {tensor.shape[1]}, which no group divides"
        return None


class EightBitsScales(EightBits):
    """The scales of :class:`EightBits`."""

    which = 1


class RotatedEightBits(EightBits):
    """The numbers of a weight whose rows are rotated; the product's input has to be rotated alike."""

    rotates = True


class RotatedEightBitsScales(RotatedEightBits):
    """The scales of :class:`RotatedEightBits`."""

    which = 1


EIGHT_BITS: dict[str, type[EightBits]] = {
    NUMBERS: EightBits,
    SCALES: EightBitsScales,
    ROTATED: RotatedEightBits,
    ROTATED_SCALES: RotatedEightBitsScales,
}
