"""Which of a call's tensors is which: one that it hands back or leaves behind may be an argument itself, a view of one,
a weight, or the same as another.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..weights import WeightRef, WeightsChanged
from .errors import CaptureError
from .regions import Region, apart, place_in


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
    """A view of an argument, of another result or of what was there before the call, by its region relative to where
    that begins, as long as that has these ``strides``. None: they are the signature's.
    """

    of: Slot | Given | Kept
    region: Region
    strides: tuple[int, ...] | None = None


@dataclass(frozen=True)
class Lazily:
    """A tensor that is conjugated or negated only when it is read: of a view of what it lies in, or with the values
    that the graph computes (:class:`Slot`).
    """

    of: Slot | View
    conjugated: bool
    negated: bool


Leaf = Slot | Given | Kept | View | Lazily
KeptAt = Callable[[torch.Tensor], "WeightRef | None"]
KeptIn = Callable[[torch.Tensor], Sequence[torch.Tensor]]


def nowhere(tensor: torch.Tensor) -> WeightRef | None:
    """Return None: a call that has nothing but its arguments keeps no tensor anywhere."""
    return None


def nothing(tensor: torch.Tensor) -> Sequence[torch.Tensor]:
    """Return nothing: such a call shares memory with nothing that was there before."""
    return ()


class CallTensors:
    """The distinct tensors that one recorded call hands back and leaves behind.

    Args:
        inputs: the signature's tensors.
        kept_at: says where a tensor is kept that was there before the call.
        separately: each tensor counts as one that the graph returns, whatever it is.
        kept_in: what was there before the call and lies in the same memory as a tensor.
        from_live: whether code that runs live has returned a tensor of this memory: another call's may lie elsewhere.

    Attributes:
        computed: those that the graph has to return, in order.
        viewed: where tensors are kept of which there are views.
    """

    def __init__(
        self,
        inputs: Sequence[torch.Tensor] = (),
        kept_at: KeptAt = nowhere,
        separately: bool = False,
        kept_in: KeptIn = nothing,
        from_live: Callable[[torch.Tensor], bool] = lambda tensor: False,
    ) -> None:
        self.computed: list[torch.Tensor] = []
        self.viewed: set[WeightRef] = set()
        self._inputs = list(inputs)
        self._kept_at, self._kept_in = kept_at, kept_in
        self._separately, self._from_live = separately, from_live
        self._inside: dict[int, View] = {}
        self._leaves: dict[int, Leaf] = {id(tensor): Given(index) for index, tensor in enumerate(inputs)}

    def of(self, tensor: torch.Tensor) -> Leaf:
        """What ``tensor`` is. One that the call has computed and that isn't known yet comes behind the others.

        Raises:
            CaptureError: nobody could tell what it is in another call.
        """
        leaf = self._leaves.get(id(tensor))
        if leaf is None:
            leaf = self._leaves[id(tensor)] = (
                self._kept(tensor) or self._view(tensor) or self._lazily(tensor) or self._new(tensor)
            )
        return leaf

    def of_all(self, tensors: Sequence[torch.Tensor]) -> list[Leaf]:
        """What each of several tensors is, also where one of them is a view of another one."""
        if self._separately:
            first = len(self.computed)
            self.computed += tensors
            return [Slot(first + index) for index in range(len(tensors))]
        for tensor in sorted(tensors, key=_first_to_last) if _share_memory(tensors) else tensors:
            self.of(tensor)
        return list(map(self.of, tensors))

    def _kept(self, tensor: torch.Tensor) -> Kept | None:
        ref = self._kept_at(tensor)
        return None if ref is None else Kept(ref)

    def _lazily(self, tensor: torch.Tensor) -> Lazily | None:
        if self._separately or not _is_lazy(tensor):
            return None
        return Lazily(
            self._view(_toggled(tensor, tensor.is_conj(), tensor.is_neg())) or self._new(tensor),
            tensor.is_conj(),
            tensor.is_neg(),
        )

    def _new(self, tensor: torch.Tensor) -> Slot:
        if vars(tensor):
            raise CaptureError(f"a tensor of the result was given the attribute {next(iter(vars(tensor)))}")
        if tensor.requires_grad and tensor.is_leaf:
            raise CaptureError("a tensor of the result wants a gradient of its own")
        there = (*self._inputs, *self.computed)
        lazy = any(_is_lazy(tensor) or _is_lazy(other) for other in self.computed if _same_memory(tensor, other))
        if not self._separately and (lazy or any(_seen_otherwise(tensor, other) for other in there)):
            raise CaptureError("a tensor of the result is another, or an argument, in another dtype or conjugated")
        here = Slot(len(self.computed))
        if not self._separately and _is_strided(tensor):
            self._look_inside(tensor, here)
        self.computed.append(tensor)
        return here

    def _look_inside(self, tensor: torch.Tensor, here: Slot) -> None:
        """Some that came before may lie in ``tensor``.

        Raises:
            CaptureError: one has some elements of it, and others beside.
        """
        memory = _memory(tensor)
        for index, part in enumerate(self.computed):
            if index in self._inside or not _is_strided(part) or _memory(part) != memory:
                continue
            if _is_dense(tensor) and (region := _within(part, tensor)) is not None:
                self._inside[index] = View(here, region)
            elif not apart(Region.of(part), Region.of(tensor)):
                raise CaptureError("two tensors of the result have some of their elements in common")

    def settled(self, leaf: Any) -> Any:
        """What a leaf is, now that all are known: what counted as a tensor of its own may lie in a later one."""
        if isinstance(leaf, Slot):
            return self._inside.get(leaf.index, leaf)
        if isinstance(leaf, Lazily) and isinstance(leaf.of, View):
            return replace(leaf, of=self.settled(leaf.of))
        if isinstance(leaf, View) and isinstance(leaf.of, Slot) and (whole := self._inside.get(leaf.of.index)):
            return View(whole.of, replace(leaf.region, offset=leaf.region.offset + whole.region.offset))
        return leaf

    def _view(self, tensor: torch.Tensor) -> View | None:
        if not _is_strided(tensor):
            return None
        memory = _memory(tensor)
        if self._from_live(tensor):
            there = [each for each in (*self._inputs, *self.computed) if _is_strided(each)]
            if any(_memory(each)[0] == memory[0] for each in there) or self._kept_in(tensor):
                raise CaptureError("the result holds what code that runs live has returned of other tensors")
            return None
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
        if kept := self._kept_in(tensor):
            return self._view_of_kept(tensor, kept)
        for index, base in enumerate(self.computed):  # one that lies in the memory of its copy as it lies in its own
            if (
                _is_strided(base)
                and _memory(base) == memory
                and _is_dense(base)
                and (region := _within(tensor, base)) is not None
            ):
                return View(Slot(index), region)
        return None

    def _view_of_kept(self, tensor: torch.Tensor, kept: Sequence[torch.Tensor]) -> View:
        for base in kept:
            region, ref = _within(tensor, base), self._kept_at(base)
            if region is not None and ref is not None and base.dtype == tensor.dtype:
                self.viewed.add(ref)
                return View(Kept(ref), region, base.stride())
        raise CaptureError("the result is a view of a weight that lies elsewhere in the same memory")


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
        if leaf.strides is not None and base.stride() != leaf.strides:
            raise WeightsChanged("a weight lies otherwise than when a view of it was returned")
        with torch._C.DisableTorchFunction():
            return base.as_strided(region.size, region.stride, base.storage_offset() + region.offset)
    if isinstance(leaf, Lazily):
        base = found_in(leaf.of, tensors, inputs)
        if isinstance(leaf.of, Slot):  # which has the values: what is to be read has those that lie in memory
            lies = torch.empty_strided(base.shape, base.stride(), dtype=base.dtype, device=base.device)
            base = lies.copy_(_toggled(base, leaf.conjugated, leaf.negated))
        return _toggled(base, leaf.conjugated, leaf.negated)
    found: torch.Tensor = leaf.ref.table()[leaf.ref.name]
    return found


def _share_memory(tensors: Sequence[torch.Tensor]) -> bool:
    memory = [
        _memory(tensor)
        for tensor in {id(tensor): tensor for tensor in tensors}.values()
        if _is_strided(tensor) or _is_lazy(tensor)
    ]
    return len(set(memory)) < len(memory)


def _first_to_last(tensor: torch.Tensor) -> tuple[bool, int]:
    """In which order tensors are looked at that lie in one another: wholes first."""
    return _is_lazy(tensor), -tensor.numel()


def _is_lazy(tensor: torch.Tensor) -> bool:
    """Whether it is conjugated or negated when it is read."""
    return type(tensor) is torch.Tensor and tensor.layout is torch.strided and (tensor.is_conj() or tensor.is_neg())


def _toggled(tensor: torch.Tensor, conjugated: bool, negated: bool) -> torch.Tensor:
    """The same memory, read otherwise."""
    with torch.no_grad(), torch._C.DisableTorchFunction():
        tensor = tensor.conj() if conjugated else tensor
        return torch._neg_view(tensor) if negated else tensor


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


def _seen_otherwise(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two lie in one memory of which no region of the one could be the other."""
    return tensor.dtype != other.dtype and _same_memory(tensor, other)


def _same_memory(tensor: torch.Tensor, other: torch.Tensor) -> bool:
    plain = all(type(each) is torch.Tensor and each.layout is torch.strided for each in (tensor, other))
    return plain and _memory(tensor)[0] == _memory(other)[0]


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
    once = tuple(1 if step == 0 else count for step, count in zip(mine.stride, mine.size, strict=True))
    if place_in(replace(mine, size=once), whole) is None:
        return None
    return Region(mine.size, mine.stride, mine.offset - whole.offset)
