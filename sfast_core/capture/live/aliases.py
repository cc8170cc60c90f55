"""What live code gives back may be an alias of what it was handed: in the same memory, so that a write to the one is a
write to the other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from .rebuilding import rebuilt


class Alias(NamedTuple):
    """What one tensor is an alias of: which of those that were handed over, from which element of it on, and with which
    strides. None: of none, it lies elsewhere.
    """

    handed: int | None = None
    offset: int = 0
    stride: tuple[int, ...] = ()

    def of(self, other: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        """The same part of the memory of another tensor, shaped ``like`` the one that lies there."""
        return other.as_strided(like.size(), self.stride, other.storage_offset() + self.offset)


def aliases_of(tensors: Sequence[torch.Tensor | None], handed: Sequence[torch.Tensor]) -> tuple[Alias, ...]:
    """What each of these tensors is an alias of."""
    with torch._C.DisableTorchFunction():
        places: dict[int, int] = {}
        for index, each in enumerate(handed):
            places.setdefault(_memory(each), index)
        found = []
        for tensor in tensors:
            place = None if tensor is None else places.get(_memory(tensor))
            if tensor is None or place is None:
                found.append(Alias())
            else:
                offset = tensor.storage_offset() - handed[place].storage_offset()
                found.append(Alias(place, offset, tuple(tensor.stride())))
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
        return found[1].of(own, value) if own.dtype == value.dtype else value

    return rebuilt(result, replace) if aliases else result
