"""Weights of linear layers that read one input, joined along their first dimension: one product computes all."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from .errors import WeightsChanged
from .memory import move, parts
from .plain import Plain
from .ref import WeightRef

PACKED = "packed"


class Packed(Plain):
    """Each of the module's tensors lies in a part of one memory, and keeps it alive. It isn't held here."""

    def __init__(self) -> None:
        self._memory: dict[tuple[WeightRef, ...], StorageWeakRef] = {}  # of each group
        self._parts: dict[int, StorageWeakRef] = {}  # the storage of each member of a group

    @staticmethod
    def meaning(*tensors: torch.Tensor) -> torch.Tensor:
        """As ``torch.cat``, whose meta kernel would import ``torch._dynamo``."""
        joined = tensors[0].new_empty(_joined(tensors))
        for part, tensor in zip(joined.split([tensor.shape[0] for tensor in tensors]), tensors, strict=True):
            part.copy_(tensor)
        return joined

    def why_not(self, refs: Sequence[WeightRef]) -> str | None:
        """They must differ in their first dimension alone."""
        if len(set(refs)) != len(refs):
            return f"the weight {refs[0]} would be packed with itself"
        if len(set(map(_kind, refs))) == 1:
            return None
        return f"the weights {' and '.join(map(str, refs))} are not of one kind any more"

    def laid(self, refs: Sequence[WeightRef]) -> torch.Tensor | None:
        """The memory that these lie in, as one tensor, if each lies in its part."""
        pack = self._memory.get(tuple(refs))
        memory = None if pack is None else torch.UntypedStorage._new_with_weak_ptr(pack.cdata)
        if memory is None:
            return None
        tensors = [ref.tensor() for ref in refs]
        first, place = tensors[0], memory.data_ptr()
        for tensor in tensors:
            if (
                tensor.data_ptr() != place
                or not tensor.is_contiguous()
                or tensor.shape[1:] != first.shape[1:]
                or tensor.dtype != first.dtype
            ):
                return None
            place += tensor.nbytes
        return torch.empty(0, dtype=first.dtype, device=first.device).set_(memory, 0, _joined(tensors))

    def lay(self, refs: Sequence[WeightRef]) -> torch.Tensor:
        """Move each into its part of one new memory.

        Raises:
            WeightsChanged: they are not alike.
        """
        if reason := self.why_not(refs):
            raise WeightsChanged(reason)
        tensors = [ref.tensor() for ref in refs]
        packed = torch.empty(_joined(tensors), dtype=tensors[0].dtype, device=tensors[0].device)
        self._parts = {place: part for place, part in self._parts.items() if not part.expired()}
        self._memory[tuple(refs)] = StorageWeakRef(packed.untyped_storage())
        for tensor, part in zip(tensors, parts(packed.untyped_storage(), tensors), strict=True):
            storage = StorageWeakRef(part.untyped_storage())
            self._parts[storage.cdata] = storage
            move(tensor, part)
        return packed

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether it lies in a part of packed memory."""
        return tensor.untyped_storage()._cdata in self._parts


def _joined(tensors: Sequence[torch.Tensor]) -> tuple[int, ...]:
    return (sum(tensor.shape[0] for tensor in tensors), *tensors[0].shape[1:])


def _kind(ref: WeightRef) -> tuple[type, torch.dtype, torch.Size]:
    """What weights must have in common to be packed. Not the device: those elsewhere are packed on their way."""
    tensor = ref.tensor()
    return torch.Tensor if type(tensor) is torch.nn.Parameter else type(tensor), tensor.dtype, tensor.shape[1:]
