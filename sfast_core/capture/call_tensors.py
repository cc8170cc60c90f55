"""Which of a call's tensors is which: one that it hands back or leaves behind may be an argument itself, a view of one,
a weight, or the same as another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..weights import WeightRef
from .errors import CaptureError
from .regions import Region, place_in


@dataclass(frozen=True)
class Slot:
    """A tensor that the graph computes: its place among the graph's results."""

    index: int


@dataclass(frozen=True)
class Given:
    """An argument itself: its place among the signature's tensors."""

    index: int


@dataclass(frozen=True)
class Kept:
    """A weight itself, or another tensor that was there before the call."""

    ref: WeightRef


@dataclass(frozen=True)
class View:
    """A view of an argument, or of another result, by its region relative to where that begins."""

    of: Slot | Given
    region: Region


Leaf = Slot | Given | Kept | View
KeptAt = Callable[[torch.Tensor], "WeightRef | None"]


def nowhere(tensor: torch.Tensor) -> WeightRef | None:
    """For a call that has nothing but its arguments."""
    return None


class CallTensors:
    """The distinct tensors that one recorded call hands back and leaves behind.

    Args:
        inputs: the signature's tensors.
        kept_at: says where a tensor is kept that was there before the call.
        apart: each tensor counts as one that the graph returns, whatever it is.

    Attributes:
        computed: those that the graph has to return, in order.
    """

    def __init__(self, inputs: Sequence[torch.Tensor] = (), kept_at: KeptAt = nowhere, apart: bool = False) -> None:
        self.computed: list[torch.Tensor] = []
        self._inputs = list(inputs)
        self._kept_at = kept_at
        self._apart = apart
        self._leaves: dict[int, Leaf] = {id(tensor): Given(index) for index, tensor in enumerate(inputs)}

    def of(self, tensor: torch.Tensor) -> Leaf:
        """What ``tensor`` is. One that the call has computed and that isn't known yet comes behind the others.

        Raises:
            CaptureError: nobody could tell what it is in another call.
        """
        leaf = self._leaves.get(id(tensor))
        if leaf is None:
            leaf = self._leaves[id(tensor)] = self._kept(tensor) or self._view(tensor) or self._new(tensor)
        return leaf

    def of_all(self, tensors: Sequence[torch.Tensor]) -> list[Leaf]:
        """Likewise of several, whichever of them is a view of another one."""
        if self._apart:
            first = len(self.computed)
            self.computed += tensors
            return [Slot(first + index) for index in range(len(tensors))]
        for tensor in sorted(tensors, key=torch.Tensor.numel, reverse=True) if _share_memory(tensors) else tensors:
            self.of(tensor)
        return list(map(self.of, tensors))

    def _kept(self, tensor: torch.Tensor) -> Kept | None:
        ref = self._kept_at(tensor)
        return None if ref is None else Kept(ref)

    def _new(self, tensor: torch.Tensor) -> Slot:
        if vars(tensor):
            raise CaptureError(f"a tensor of the result was given the attribute {next(iter(vars(tensor)))}")
        if tensor.requires_grad and tensor.is_leaf:
            raise CaptureError("a tensor of the result wants a gradient of its own")
        self.computed.append(tensor)
        return Slot(len(self.computed) - 1)

    def _view(self, tensor: torch.Tensor) -> View | None:
        if not _is_strided(tensor):
            return None
        memory = _memory(tensor)
        shared = [
            Given(index) for index, base in enumerate(self._inputs) if _memory(base) == memory and _is_strided(base)
        ]
        if shared:
            within = [
                (leaf, region) for leaf in shared if (region := _within(tensor, self._inputs[leaf.index])) is not None
            ]
            if len(within) != 1:
                raise CaptureError(
                    "the result is a view of an argument that shares memory with others, or reaches beyond it"
                )
            return View(*within[0])
        for index, base in enumerate(self.computed):  # one that lies in the memory of its copy as it lies in its own
            if (
                _is_strided(base)
                and _memory(base) == memory
                and _is_dense(base)
                and (region := _within(tensor, base)) is not None
            ):
                return View(Slot(index), region)
        return None


def found_in(leaf: Leaf, tensors: Sequence[torch.Tensor], inputs: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensor of another call that is what ``leaf`` says.

    Args:
        leaf: of the recorded call.
        tensors: what the graph returned.
        inputs: the call's own.
    """
    if isinstance(leaf, Slot):
        return tensors[leaf.index]
    if isinstance(leaf, Given):
        return inputs[leaf.index]
    if isinstance(leaf, View):
        base, region = found_in(leaf.of, tensors, inputs), leaf.region
        with torch._C.DisableTorchFunction():
            return base.as_strided(region.size, region.stride, base.storage_offset() + region.offset)
    found: torch.Tensor = leaf.ref.table()[leaf.ref.name]
    return found


def _share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    memory = [_memory(tensor) for tensor in {id(tensor): tensor for tensor in tensors}.values() if _is_strided(tensor)]
    return len(set(memory)) < len(memory)


def _is_strided(tensor: Any) -> bool:
    """Whether it is no more than a region of memory."""
    return (
        type(tensor) is torch.Tensor
        and tensor.layout is torch.strided
        and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)
    )


def _memory(tensor: torch.Tensor) -> tuple[int, torch.dtype]:
    with torch._C.DisableTorchFunction():
        return (tensor.untyped_storage()._cdata, tensor.dtype)


def _is_dense(tensor: torch.Tensor) -> bool:
    """Whether each place in its memory, from its first element to its last, is one element."""
    region, reach = Region.of(tensor), 1
    for step, count in reversed(region.steps):
        if step != reach:
            return False
        reach *= count
    return True


def _within(tensor: torch.Tensor, base: torch.Tensor) -> Region | None:
    """Where in ``base`` all elements of ``tensor`` are, counted from where that begins."""
    mine, whole = Region.of(tensor), Region.of(base)
    if place_in(mine, whole) is None:
        return None
    return Region(mine.size, mine.stride, mine.offset - whole.offset)
