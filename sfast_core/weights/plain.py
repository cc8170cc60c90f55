"""A tensor of the module's just as it lies there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .ref import WeightRef


class Plain:
    """What every weight is at first."""

    keeps_strides = True
    beside = False

    @staticmethod
    def meaning(tensor: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return tensor

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """It lies so already."""
        return None

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """The module's own."""
        return refs[0].tensor()

    lay = laid

    def holds(self, tensor: torch.Tensor) -> bool:
        """Nothing was made."""
        return False

    def place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """In the module's table."""
        return ref.table(), ref.name
