"""A weight that is one of the module's tensors as it lies there."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from .ref import WeightRef


class Plain:
    """The layout that every weight has at first, and the base of others."""

    keeps_strides = True
    beside = False

    @staticmethod
    def meaning(tensor: torch.Tensor) -> torch.Tensor:
        """The tensor."""
        return tensor

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """Any tensor may."""
        return None

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """The module's own tensor."""
        return refs[0].tensor()

    lay = laid

    def holds(self, tensor: torch.Tensor) -> bool:
        """It makes no memory."""
        return False

    def place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """In the module's parameters, buffers or attributes."""
        return ref.table(), ref.name
