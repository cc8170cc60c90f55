"""What live code gives back may be an alias of what it was handed: in the same memory, so that a write to the one is a
write to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from ..rebuilding import rebuilt


class Alias(NamedTuple):
    """What one tensor is an alias of: which of those that were handed over, or that were returned in front of it, from
    which element of it on, and with which strides; and the size and the strides that this one had. None: of none, it
    lies elsewhere.
    """

    handed: int | None = None
    offset: int = 0
    stride: tuple[int, ...] = ()
    lay: tuple[tuple[int, ...], tuple[int, ...]] = ((), ())

    def of(self, other: torch.Tensor, like: torch.Tensor) -> torch.Tensor | None:
        """The same part of another tensor, shaped ``like`` the one that lies there; None where it is none of its
        elements in order: a flattened part of a tensor that lies otherwise.
        """
        there = (self.stride, self.offset) if self._lies_in(other) else self._in_other_strides(other, like)
        return None if there is None else other.as_strided(like.size(), there[0], other.storage_offset() + there[1])

    def _lies_in(self, other: torch.Tensor) -> bool:
        return self.lay == (tuple(other.size()), tuple(other.stride()))

    def _in_other_strides(self, other: torch.Tensor, like: torch.Tensor) -> tuple[tuple[int, ...], int] | None:
        """Its strides and its offset in a tensor of the same size that lies otherwise (convolutions give their results
        in the layout of their weights), each dimension by that of which it is every n-th element.
        """
        sizes, strides = self.lay
        if sizes != tuple(other.size()):
            return None
        dims = sorted((dim for dim, size in enumerate(sizes) if size > 1), key=lambda dim: -strides[dim])
        if any(strides[dim] == 0 for dim in dims):
            return None
        left, first = self.offset, dict.fromkeys(dims, 0)
        for dim in dims:
            first[dim], left = divmod(left, strides[dim])
        found, ends = [], dict(first)
        for size, stride in zip(like.size(), self.stride, strict=True):
            if size <= 1 or stride == 0:
                found.append(0)
                continue
            along = next((dim for dim in dims if stride % strides[dim] == 0), None)
            if along is None:
                return None
            ends[along] += (size - 1) * (stride // strides[along])
            found.append(stride // strides[along] * other.stride(along))
        if left or any(end >= sizes[dim] for dim, end in ends.items()):
            return None
        return tuple(found), sum(count * other.stride(dim) for dim, count in first.items())


def aliases_of(tensors: Sequence[torch.Tensor | None], handed: Sequence[torch.Tensor]) -> tuple[Alias, ...]:
    """What each of these tensors is an alias of: one that was handed over, or an earlier one of these, by the number
    behind those.
    """
    with torch._C.DisableTorchFunction():
        places: dict[int, int] = {}
        for index, each in enumerate(handed):
            places.setdefault(_memory(each), index)
        found = []
        for number, tensor in enumerate(tensors, len(handed)):
            place = number if tensor is None else places.setdefault(_memory(tensor), number)
            if tensor is None or place == number:
                found.append(Alias())
                continue
            own = handed[place] if place < len(handed) else tensors[place - len(handed)]
            assert own is not None  # else nothing would lie there
            offset = tensor.storage_offset() - own.storage_offset()
            found.append(Alias(place, offset, tuple(tensor.stride()), (tuple(own.size()), tuple(own.stride()))))
    return tuple(found)


def _memory(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage()._cdata if tensor.layout is torch.strided else id(tensor)


def given_back(result: Any, aliases: dict[int, tuple[torch.Tensor, Alias]], given: Sequence[torch.Tensor]) -> Any:
    """``result`` with what lay in what was handed over in what is ``given`` in its place.

    Args:
        result: what live code has returned.
        aliases: its tensors that do, by id, and of what.
        given: for each that was handed over, in order.
    """

    def replace(value: Any, key: Any) -> Any:
        found = aliases.get(id(value))
        if found is None or found[1].handed is None or found[1].handed >= len(given):
            return value
        own = given[found[1].handed]
        there = found[1].of(own, value) if own.dtype == value.dtype else None
        return value if there is None else there

    return rebuilt(result, replace) if aliases else result
