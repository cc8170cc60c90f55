"""A weight that isn't on the device: what has to be copied there, and how that becomes what a program reads.

The tensors' bytes are copied as they lie, side by side, into one slot of device memory. For a plain or packed weight
that slot is what the program reads. Another layout or dtype, and what a host computes of a weight at each use, is made
from it on the device.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from ..reporting.reasons.memory import NOT_THERE, PARTLY_AWAY, WHICH_DTYPE
from .errors import WeightsElsewhere
from .layout import Layout, Weight
from .offload import Arrival, Computed, Held
from .packed import PACKED

Strides = tuple[int, ...]
_Form = tuple[torch.Size, Strides, torch.dtype]
_ALIGNMENT = 256


@dataclass(frozen=True)
class Arriving:
    """One weight of a program that is to be brought in one call. It holds the module's tensors for that long.

    Attributes:
        weight: the program's weight.
        sources: the module's tensors, each dense, wherever they are.
        dtypes: the dtype in which the host has each on the device.
        functions: what the host computes of each there.
        computed_in: the dtype in which it does.
        in_place: whether the slot itself is what the program reads. If not, the slot is free once that is made.
    """

    weight: Weight
    sources: tuple[torch.Tensor, ...]
    dtypes: tuple[torch.dtype, ...]
    functions: tuple[tuple[Computed, ...], ...]
    computed_in: torch.dtype
    in_place: bool
    _meaning: Callable[..., torch.Tensor]
    _form: _Form

    @classmethod
    def of(
        cls,
        weight: Weight,
        layout: Layout,
        functions: Sequence[tuple[Computed, ...]],
        arrival: Arrival,
        device: torch.device,
        sources: Sequence[torch.Tensor] | None = None,
        dtypes: Sequence[torch.dtype] | None = None,
    ) -> Arriving:
        """The weight as the module has it now, for a program on ``device`` that takes it as ``arrival`` says.

        ``sources``: what to copy, where that isn't the module's own tensors; ``dtypes``: the dtype in which the host
        has each on the device, where that isn't its own.

        Raises:
            ReferenceError: the weight is gone.
            WeightsChanged: it is made of other parts now.
            WeightsElsewhere: it can't be brought.
        """
        sources = tuple(ref.tensor() for ref in weight.refs) if sources is None else tuple(sources)
        for ref, source in zip(weight.refs, sources, strict=True):
            reason = arrival.why_not if is_dense(source) else "its memory has gaps"
            if reason or (source.device != device and source.device.type != "cpu"):
                there = NOT_THERE(weight=ref, where=source.device, device=device)
                raise WeightsElsewhere(there.also(f"{there}, and {reason}") if reason else there)
        if reason := layout.why_not(weight.refs):
            raise WeightsElsewhere(PARTLY_AWAY(why=reason, device=device))
        dtypes = tuple(source.dtype for source in sources) if dtypes is None else tuple(dtypes)
        dtype = arrival.dtype or dtypes[0]
        computed = any(functions)
        if computed and (not dtype.is_floating_point or (arrival.dtype is None and dtype.itemsize == 1)):
            raise WeightsElsewhere(WHICH_DTYPE(weight=weight))
        forms = tuple((source.shape, source.stride(), each) for source, each in zip(sources, dtypes, strict=True))
        form = _laid(layout.meaning, forms)
        in_place = form == forms[0] if weight.layout != PACKED else _lie_in_order(sources)
        in_place = in_place and _of_dtypes(sources, dtypes)
        if computed:
            in_place = in_place and dtype == sources[0].dtype
        return cls(weight, sources, dtypes, tuple(functions), dtype, in_place, layout.meaning, form)

    # -- as a tensor, to who compares weights -----------------------------------------------------------------------

    @property
    def shape(self) -> torch.Size:
        """The shape of what the program reads."""
        return self._form[0]

    def stride(self) -> Strides:
        """The strides of what the program reads."""
        return self._form[1]

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which the host has it on the device."""
        return self._form[2]

    def data_ptr(self) -> Any:
        """Identifies where the module's tensors lie, and how: weights with equal values are brought alike."""
        return tuple((str(source.device), source.data_ptr(), source.stride(), source.nbytes) for source in self.sources)

    @property
    def nbytes(self) -> int:
        """The size of the slot."""
        return sum(map(self._room, self.sources))

    @property
    def computed(self) -> bool:
        """Whether the host computes something of it."""
        return any(self.functions)

    @property
    def repeatable(self) -> bool:
        """Whether a graph may hold what it computes."""
        return all(isinstance(function, Held) for functions in self.functions for function in functions)

    # -- in the slot ------------------------------------------------------------------------------------------------

    def views(self, slot: torch.Tensor) -> list[torch.Tensor]:
        """The parts of ``slot``, of ``nbytes`` bytes, that the module's tensors are copied into."""
        return list(self._parts(slot))

    def made(self, slot: torch.Tensor) -> torch.Tensor:
        """What the program reads, made from ``slot`` when all tensors have been copied."""
        parts = [part.to(dtype) for part, dtype in zip(self.views(slot), self.dtypes, strict=True)]
        if not self.computed:
            return self._joined(slot) if self._side_by_side else self._meaning(*parts)
        results = [self._computed(part, functions) for part, functions in zip(parts, self.functions, strict=True)]
        if self._side_by_side and all(
            result.data_ptr() == part.data_ptr() for result, part in zip(results, parts, strict=True)
        ):
            return self._joined(slot)
        return self._meaning(*results)

    def brought(self, device: torch.device) -> torch.Tensor:
        """What the program reads, copied to a device now."""
        slot = torch.empty(self.nbytes, dtype=torch.uint8, device=device)
        for part, source in zip(self.views(slot), self.sources, strict=True):
            part.copy_(source)
        return self.made(slot)

    @property
    def _side_by_side(self) -> bool:
        """Whether the copied tensors, side by side, are the packed weight already."""
        return self.weight.layout == PACKED and _lie_in_order(self.sources) and _of_dtypes(self.sources, self.dtypes)

    def _parts(self, slot: torch.Tensor) -> Iterator[torch.Tensor]:
        start = 0
        for source in self.sources:
            yield slot[start : start + source.nbytes].view(source.dtype).as_strided(source.shape, source.stride())
            start += self._room(source)

    def _room(self, source: torch.Tensor) -> int:
        """The bytes from one part to the next: without gaps for a packed weight, else aligned for any dtype."""
        return source.nbytes if self._side_by_side else -(-source.nbytes // _ALIGNMENT) * _ALIGNMENT

    def _joined(self, slot: torch.Tensor) -> torch.Tensor:
        shape, strides, dtype = self._form
        return slot[: self.nbytes].view(dtype).as_strided(shape, strides)

    def _computed(self, part: torch.Tensor, functions: Sequence[Computed]) -> torch.Tensor:
        if functions:
            part = part.to(self.computed_in)
            for function in functions:
                part = function(part)
        return part.to(self.computed_in)  # beside others of which something is computed


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether a tensor's elements fill its memory without gaps, in whatever order."""
    expected = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size != 1:
            if stride != expected:
                return False
            expected *= size
    return True


def _lie_in_order(sources: Sequence[torch.Tensor]) -> bool:
    return all(source.is_contiguous() for source in sources)


def _of_dtypes(sources: Sequence[torch.Tensor], dtypes: Sequence[torch.dtype]) -> bool:
    return all(source.dtype == dtype for source, dtype in zip(sources, dtypes, strict=True))


@functools.lru_cache(4096)
def _laid(meaning: Callable[..., torch.Tensor], forms: tuple[_Form, ...]) -> _Form:
    """The form of what a layout makes of tensors of these forms."""
    made = meaning(*(torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in forms))
    return made.shape, made.stride(), made.dtype
