"""The model's tensors as live code has them, while a call is recorded."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch

from .lent import version_of


@dataclass(eq=False)
class Twin:
    """One of the model's tensors as live code has it, while a call is recorded.

    Attributes:
        number: the model's tensor's.
        tensor: a copy, or the very one.
        version: its, when it had what the model's has.
    """

    number: int
    tensor: torch.Tensor
    version: int = 0


class Twins:
    """The twins of one recorded call. They last as long as the model's tensors."""

    def __init__(self) -> None:
        self._twins: dict[int, tuple[weakref.ref[torch.Tensor], Twin]] = {}
        self._count = 0

    def of(self, own: torch.Tensor) -> Twin | None:
        """That of one of the model's tensors, or None."""
        entry = self._twins.get(id(own))
        return entry[1] if entry is not None and entry[0]() is own else None

    def add(self, own: torch.Tensor, tensor: torch.Tensor) -> Twin:
        """Live code has ``tensor`` for the model's ``own``."""
        twin = Twin(self._count, tensor, version_of(tensor))
        self._count += 1
        key = id(own)
        drop: Callable[[object], object] = lambda ref: self._drop(key, ref)  # noqa: E731
        self._twins[key] = weakref.ref(own, drop), twin
        return twin

    def _drop(self, key: int, ref: object) -> None:
        entry = self._twins.get(key)
        if entry is not None and entry[0] is ref:
            del self._twins[key]

    def _each(self) -> Iterator[tuple[torch.Tensor, Twin]]:
        for ref, twin in list(self._twins.values()):
            if (own := ref()) is not None:
                yield own, twin

    def show(self) -> None:
        """Live code is to see what the model has written."""
        for own, twin in self._each():
            if not _one_memory(own, twin.tensor):
                twin.tensor.copy_(own)
        self._settle()

    def take(self, handed: Sequence[torch.Tensor]) -> bool:
        """Have the model see what live code has written; whether that was to something that it wasn't handed now."""
        memory = {each.untyped_storage()._cdata for each in handed}
        late = False
        for own, twin in self._each():
            if version_of(twin.tensor) != twin.version:
                late |= twin.tensor.untyped_storage()._cdata not in memory
                if not _one_memory(own, twin.tensor):
                    own.copy_(twin.tensor)
        self._settle()
        return late

    def _settle(self) -> None:
        for _, twin in self._each():
            twin.version = version_of(twin.tensor)


def _one_memory(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one is other or one.untyped_storage()._cdata == other.untyped_storage()._cdata
