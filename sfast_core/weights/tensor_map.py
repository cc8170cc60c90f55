"""A dictionary from tensor objects, which it doesn't keep alive."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

T = TypeVar("T")


class TensorMap(Generic[T]):
    """Values by tensor object: by which it is, not by what is in it.

    torch's ``WeakTensorKeyDictionary`` does the same for whoever walks it too. A look-up there makes a weak reference
    and compares it, both in Python: 3.6 us, here 0.3, and a recorded call of SDXL makes 17,000. An entry stays behind
    when its tensor goes, and is nobody's: what gets the same id later is another object.
    """

    def __init__(self) -> None:
        self._entries: dict[int, tuple[weakref.ref[torch.Tensor], T]] = {}

    def get(self, tensor: torch.Tensor) -> T | None:
        """The value of this very object, or None."""
        entry = self._entries.get(id(tensor))
        return entry[1] if entry is not None and entry[0]() is tensor else None

    def __contains__(self, tensor: torch.Tensor) -> bool:
        entry = self._entries.get(id(tensor))
        return entry is not None and entry[0]() is tensor

    def __setitem__(self, tensor: torch.Tensor, value: T) -> None:
        self._entries[id(tensor)] = (weakref.ref(tensor), value)

    def __delitem__(self, tensor: torch.Tensor) -> None:
        del self._entries[id(tensor)]
