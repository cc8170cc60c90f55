"""A convolution's weight with its channels innermost in memory, as kernels for NHWC images and NDHWC videos read it."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from ..ops.packs import INNERMOST
from .memory import Strides, lay
from .plain import Plain
from .ref import WeightRef

CHANNELS_LAST = "channels_last"


class ChannelsLast(Plain):
    """The module's tensor with other strides, reordered within its own memory: the address stays."""

    keeps_strides = False

    @staticmethod
    def meaning(tensor: torch.Tensor) -> torch.Tensor:
        """The same values in other strides."""
        return tensor.contiguous(memory_format=INNERMOST[tensor.dim()])

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """It must be a convolution's."""
        dims = refs[0].tensor().dim()
        return None if dims in INNERMOST else f"the weight {refs[0]} has {dims} dimensions, not 4 or 5"

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor | None:
        """The module's own tensor, if its channels are innermost."""
        tensor = refs[0].tensor()
        dims = tensor.dim()
        return tensor if dims in INNERMOST and tensor.is_contiguous(memory_format=INNERMOST[dims]) else None

    def lay(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """Reorder it."""
        tensor = refs[0].tensor()
        lay(tensor, _strides(tensor))
        return tensor


def _strides(tensor: torch.Tensor) -> Strides:
    return torch.empty_like(tensor, device="meta", memory_format=INNERMOST[tensor.dim()]).stride()
