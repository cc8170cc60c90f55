"""What of a weight kernels were chosen for."""

from __future__ import annotations

from typing import NamedTuple

import torch

from .arriving import Arriving


class WeightKind(NamedTuple):
    """The strides are those that matter: a dimension of one element may have any."""

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]

    @classmethod
    def of(cls, weight: torch.Tensor | Arriving) -> WeightKind:
        """That of a weight as it is laid out, be it there or to be brought."""
        strides = tuple(stride for stride, size in zip(weight.stride(), weight.shape, strict=True) if size != 1)
        return cls(weight.shape, weight.dtype, strides)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}/{list(self.strides)}"
