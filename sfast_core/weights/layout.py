"""A weight is some of a module's tensors and a layout, which says how they lie in memory for a program.

A layout is one class in a file of its own. The store, the passes and the hosts use them by this protocol alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .ref import WeightRef

PLAIN = "plain"


class Layout(Protocol):
    """One way in which weights lie for a program. Each store has an instance, which may remember what memory it made.

    It lays out the module's own tensors: the objects, their shapes and values stay, and later they get memory and
    strides of their own back. So the program and the module share one memory, and whoever writes to a weight in place
    writes to both.

    Attributes:
        keeps_strides: whether the module's tensors keep their strides. If not, others must not see them so.
        beside: whether the program reads a copy in another form, and the module's tensors stay as they are
            (:mod:`..runtime.copies`).
    """

    keeps_strides: bool
    beside: bool

    @staticmethod
    def meaning(*tensors: torch.Tensor) -> torch.Tensor:
        """The program's tensor in plain PyTorch: values, shape, strides, not its memory; of meta tensors, too."""

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """Why these tensors can't have this layout by what they are, or None. Who else holds them is the store's to
        check. Raises as ``WeightRef.tensor`` for one that is gone.
        """

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor | None:
        """The program's tensor if the module's tensors have this layout now, else None."""

    def lay(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """Lay the module's tensors out and return the program's. Each lies in memory that nobody else sees."""

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a module's tensor lies in memory that this layout has made: sharing that is no reason against it."""

    def place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """The dictionary, and the name in it, where the module keeps the tensor: cheap to look up at each call."""


Layouts = Mapping[str, Layout]  #: a store's layouts by name


@dataclass(frozen=True)
class Weight:
    """What a graph's placeholder of a weight stands for.

    Attributes:
        refs: the module's tensors that it is made of, in order.
        layout: the name of their layout.
    """

    refs: tuple[WeightRef, ...]
    layout: str = PLAIN

    @property
    def plain(self) -> bool:
        """Whether it is one of the module's tensors as it lies there."""
        return self.layout == PLAIN

    def __str__(self) -> str:
        return "+".join(map(str, self.refs)) + ("" if self.plain else f" {self.layout}")
