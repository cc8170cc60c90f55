"""What the weights of a program were when it was proved, and whether they still are."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch

from .arriving import Arriving
from .errors import WeightsChanged
from .layout import Weight


class WeightKind(NamedTuple):
    """What kernels were chosen for. Strides of dimensions of one element are left out: they may be anything."""

    shape: torch.Size
    dtype: torch.dtype
    strides: tuple[int, ...]

    @classmethod
    def of(cls, weight: torch.Tensor | Arriving) -> WeightKind:
        """The kind of a weight as a program reads it."""
        strides = tuple(stride for stride, size in zip(weight.stride(), weight.shape, strict=True) if size != 1)
        return cls(weight.shape, weight.dtype, strides)

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.shape)}/{list(self.strides)}"


class WeightKinds:
    """The kinds of a program's weights, and what else of the module's tensors Python code may have asked for.

    Args:
        weights: the program's.
    """

    def __init__(self, weights: Sequence[Weight]) -> None:
        self._weights = weights
        self._kinds: list[WeightKind] = []
        self._classes: list[type] = []
        self._registered: list[bool] = []  # whether each is a parameter, or a buffer

    def note(self, resolved: Sequence[torch.Tensor | Arriving]) -> None:
        """Remember what the weights are now. ``resolved``: the program's tensors for them."""
        self._kinds = list(map(WeightKind.of, resolved))
        self._classes, self._registered = list(self._classes_now()), list(self._registered_now())

    def check(self, resolved: Sequence[torch.Tensor | Arriving]) -> None:
        """Check that the weights are what they were.

        Raises:
            WeightsChanged: one isn't.
        """
        for source, weight, kind in zip(self._weights, resolved, self._kinds, strict=True):
            if (now := WeightKind.of(weight)) != kind:
                raise WeightsChanged(f"the weight {source} is {now} now, it was {kind}")
        for cls, then in zip(self._classes_now(), self._classes, strict=True):
            if cls is not then:
                raise WeightsChanged(f"a weight is a {cls.__name__} now, it was a {then.__name__}")
        if list(self._registered_now()) != self._registered:
            raise WeightsChanged("a parameter is a buffer now, or a buffer a parameter")

    def _classes_now(self) -> Iterator[type]:
        """A plain tensor in a parameter's place, as ``functional_call`` puts it there, counts as a parameter."""
        classes = (type(ref.tensor()) for source in self._weights for ref in source.refs)
        return (torch.Tensor if cls is torch.nn.Parameter else cls for cls in classes)

    def _registered_now(self) -> Iterator[bool]:
        return (
            ref.table() is ref.module().__dict__.get("_parameters") for source in self._weights for ref in source.refs
        )
