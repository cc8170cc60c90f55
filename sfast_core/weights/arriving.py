"""A weight that isn't on the device: what is brought, and how that becomes what a program reads.

The bytes of its tensors come as they lie, side by side, into one slot of device memory. Where a program wants the very
tensor, or several behind one another, that slot is it; another layout or dtype, and what a host computes of a weight at
each use, is made of it there.
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
    """What one weight of a program is made of at a call.

    It holds the module's tensors: for the length of a call, and no longer.

    Attributes:
        weight: the program's.
        sources: the module's tensors, each dense, wherever they are.
        dtypes: in which the host has each on the device.
        functions: what the host computes of each there.
        computed_in: in which dtype it does.
        in_place: whether the slot is what the program reads; or else, as far as is known, of no more use once that is
            made.
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
        """The weight as the module has it now, for a program on ``device``, which says ``arrival`` of it.

        ``sources``: what it is brought from, where that isn't the module's own tensors; ``dtypes``: in which the host
        has each on the device, where that isn't how it lies.

        Raises:
            ReferenceError: it is gone.
            WeightsChanged: it is of other parts now.
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
        """That of what the program reads."""
        return self._form[0]

    def stride(self) -> Strides:
        """Likewise."""
        return self._form[1]

    @property
    def dtype(self) -> torch.dtype:
        """In which the host has it on the device."""
        return self._form[2]

    def data_ptr(self) -> Any:
        """Where the module's tensors lie, and how: two with equal ones are brought alike."""
        return tuple((str(source.device), source.data_ptr(), source.stride(), source.nbytes) for source in self.sources)

    @property
    def nbytes(self) -> int:
        """Of the slot."""
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
        """The tensors of the module's as they come to lie in ``slot``, ``nbytes`` bytes."""
        return list(self._parts(slot))

    def made(self, slot: torch.Tensor) -> torch.Tensor:
        """What the program reads, when all its tensors have come to lie in ``slot``."""
        parts = [part.to(dtype) for part, dtype in zip(self.views(slot), self.dtypes, strict=True)]
        if not self.computed:
            return self._joined(slot) if self._side_by_side else self._meaning(*parts)
        results = [self._computed(part, functions) for part, functions in zip(parts, self.functions, strict=True)]
        if self._side_by_side and all(
            result.data_ptr() == part.data_ptr() for result, part in zip(results, parts, strict=True)
        ):
            return self._joined(slot)
        return self._meaning(*results)

    @property
    def _side_by_side(self) -> bool:
        """Whether what is copied without gaps is a packed weight by that."""
        return self.weight.layout == PACKED and _lie_in_order(self.sources) and _of_dtypes(self.sources, self.dtypes)

    def _parts(self, slot: torch.Tensor) -> Iterator[torch.Tensor]:
        start = 0
        for source in self.sources:
            yield slot[start : start + source.nbytes].view(source.dtype).as_strided(source.shape, source.stride())
            start += self._room(source)

    def _room(self, source: torch.Tensor) -> int:
        """Bytes from one part to the next: those of a packed weight lie without gaps, others where any dtype may."""
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


def _form_of(tensor: torch.Tensor) -> _Form:
    return tensor.shape, tensor.stride(), tensor.dtype


@functools.lru_cache(4096)
def _laid(meaning: Callable[..., torch.Tensor], forms: tuple[_Form, ...]) -> _Form:
    """What a layout makes of tensors such as these."""
    return _form_of(
        meaning(*(torch.empty_strided(shape, stride, dtype=dtype, device="meta") for shape, stride, dtype in forms))
    )
