"""A weight is a value with a layout: which of a module's tensors it is made from, and how they lie for a program.

A layout is one class in a file of its own. The store, the rewrites and the hosts know this protocol; none asks which
layout it has before it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch

from .ref import WeightRef

PLAIN = "plain"


class Layout(Protocol):
    """One way in which weights lie for a program.

    A store has an instance of each, which may remember what memory it made.

    It lays out the module's own tensors: their objects, shapes and values stay, and each gets memory or strides of its
    own back when the store gives them back. So what a program reads and what the module has is one memory, and who
    writes to a weight in place writes to both.
    """

    #: whether the module's tensors have their own strides while they lie so. If not, others mustn't see them
    keeps_strides: bool
    #: whether what a program reads is made of the module's tensors, which stay as they are, and lies in memory of ours
    #: (:mod:`..runtime.copies`)
    beside: bool

    @staticmethod
    def meaning(*tensors: torch.Tensor) -> torch.Tensor:
        """The program's tensor in plain PyTorch: its values, shape and strides, not its memory.
        Runs on meta tensors.
        """

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """Why tensors such as these can't lie so, whoever else holds them; None where they can.

        Of one that is gone as ``WeightRef.tensor``.
        """

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor | None:
        """The program's tensor where the module's lie so; None where they are still, or again, to be laid out."""

    def lay(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """Lay the module's tensors out, each of which lies in memory of its own that nobody else sees, and give the
        program's.
        """

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor of a module's lies in memory that this layout has made, and shares it in a way that isn't
        others'.
        """

    def place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """The dictionary, and the name in it, under which the tensor is looked up of which :meth:`laid` speaks: cheap
        to ask at each call.
        """


Layouts = Mapping[str, Layout]  #: what a store can do, by name


@dataclass(frozen=True)
class Weight:
    """What a graph's weight placeholder stands for.

    Attributes:
        refs: the module's tensors whose values it has, in order.
        layout: how they lie, by the layout's name.
    """

    refs: tuple[WeightRef, ...]
    layout: str = PLAIN

    @property
    def plain(self) -> bool:
        """Whether it is one of the module's tensors just as it lies there."""
        return self.layout == PLAIN

    def __str__(self) -> str:
        return "+".join(map(str, self.refs)) + ("" if self.plain else f" {self.layout}")
