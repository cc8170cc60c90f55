"""A compiled module's weights: the module's own tensors, laid out as the fused graph wants them and held once.

A packed or channels_last weight becomes the storage of the module's own parameters: they turn into views of it, with the same values and
shapes, so whoever writes to them in place reaches it. The store keeps no tensor itself. It asks the module each time, so a weight that
the host has replaced is found, laid out anew if need be, and never stale; and a model that the host moves away is gone from the GPU.
"""

from __future__ import annotations

import operator
import weakref
from collections.abc import Collection, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol

import torch

from ..capture.weights import WeightRef, WeightSource


class WeightsElsewhere(Exception):
    """A weight isn't on the device that the program runs on: the host has moved it for now."""


class WeightsChanged(Exception):
    """A weight has another shape than the program was made for, or is gone: a patch has put another one in its place, or taken back the one that it brought."""


class Bound:
    """Weights resolved once: their addresses in the order of the sources, and the means to tell whether they still are the module's.

    It holds neither the modules nor their tensors.
    """

    def __init__(self, tensors: list[torch.Tensor], refs: Collection[WeightRef]) -> None:
        self.pointers = tuple(tensor.data_ptr() for tensor in tensors)
        self._tables: list[dict[str, Any]] = []
        self._names: list[str] = []
        self._attributes: list[WeightRef] = []  # not the root's dictionary: it leads to the compiled state, a cycle
        for ref in refs:
            table, name = self._place(ref)
            if table is ref.module().__dict__ and not ref.path:
                self._attributes.append(ref)
            else:
                self._tables.append(table)
                self._names.append(name)
        current = self._current()
        self._tensors = list(map(weakref.ref, current))
        self._addresses = list(map(_address, current))

    def valid(self) -> bool:
        """Whether each of the module's tensors is the one that it was, and lies where it lay."""
        return self.readable() and self.current()

    def readable(self) -> bool:
        """Whether the tensors still lie where they lay, so that a graph which reads them there reads no memory of others.

        This and :meth:`current` are asked at every call, so there is no loop of Python's: SD1.5's 686 weights took 1 ms in one, and a replay takes 5.
        """
        try:
            return list(map(_address, map(_alive, self._tensors))) == self._addresses
        except TypeError:  # a tensor is gone
            return False

    def current(self) -> bool:
        """Whether they are still the module's."""
        try:
            return all(map(operator.is_, self._current(), map(_alive, self._tensors)))
        except ReferenceError:  # a module is gone, or a tensor
            return False

    def _place(self, ref: WeightRef) -> tuple[dict[str, Any], str]:
        """Where the tensor is looked up, and by what name."""
        return _table(ref), ref.name

    def _current(self) -> list[torch.Tensor]:
        return [*map(dict.get, self._tables, self._names), *(ref.tensor() for ref in self._attributes)]  # type: ignore[list-item]


_alive = weakref.ref.__call__
_address = torch.Tensor.data_ptr


class Store(Protocol):
    """What the engine asks of a module's weights. Not thread-safe: its caller holds the device's lock."""

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters whose storage is packed or channels_last."""

    def may_pack(self, refs: Sequence[WeightRef]) -> bool:
        """Whether these weights may share one storage."""

    def pinned(self, device: torch.device) -> AbstractContextManager[None]:
        """Hold the weights where they are for the length of a call.

        Raises:
            WeightsElsewhere: they can't be held on ``device`` now.
        """

    def tensors(self, sources: Sequence[WeightSource], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``sources``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone.
            WeightsElsewhere: a weight isn't on ``device``.
        """

    def bind(self, sources: Sequence[WeightSource], tensors: list[torch.Tensor]) -> Bound:
        """Remember where ``tensors``, just resolved for ``sources``, lie."""

    def restore(self) -> int:
        """Give every adopted parameter plain storage of its own again. Returns how many there were."""


class WeightStore:
    """Lays out one module's weights. Not thread-safe: its caller holds the device's lock."""

    def __init__(self) -> None:
        self._group: dict[WeightRef, tuple[WeightRef, ...]] = {}
        self._adopted: set[WeightRef] = set()
        self._touched: dict[WeightRef, torch.Tensor] = {}  #: adopted at any time (the host may hold on to one); on meta, as it lay

    def may_pack(self, refs: Sequence[WeightRef]) -> bool:
        """Whether these weights may share one storage: each is free, or already in this very group."""
        group = tuple(refs)
        if any(self._group.get(ref, group) != group for ref in group) or len(set(group)) != len(group):
            return False
        tensors = [ref.tensor() for ref in group]
        return all(
            type(t) in (torch.Tensor, torch.nn.Parameter) and t.dtype == tensors[0].dtype and t.device == tensors[0].device for t in tensors
        )

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Hold the weights where they are for the length of a call. Plain weights stay by themselves."""
        yield

    def tensors(self, sources: Sequence[WeightSource], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``sources``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone.
            WeightsElsewhere: a weight isn't on ``device``; then none has been laid out anew.
        """
        for source in sources:
            for ref in source.refs:
                if (found := ref.tensor().device) != device:
                    raise WeightsElsewhere(f"the weight {ref} is on {found}, not on {device}")
        with torch.inference_mode(False), torch.no_grad():
            return [self._resolve(source) for source in sources]

    def bind(self, sources: Sequence[WeightSource], tensors: list[torch.Tensor]) -> Bound:
        """Remember where ``tensors``, just resolved for ``sources``, lie."""
        return Bound(tensors, {ref for source in sources for ref in source.refs})

    def restore(self) -> int:
        """Give every parameter that lies as the store lays them storage of its own again, in its own strides. Returns how many there were.

        A host that swaps parameters (a LoRA goes, and what it had replaced comes back) may bring such a layout back later: call it again.
        """
        restored = 0
        with torch.inference_mode(False), torch.no_grad():
            for ref, before in list(self._touched.items()):
                tensor = _table(ref).get(ref.name) if ref.owner() is not None else None
                if tensor is None:
                    continue
                stride = (before if before.shape == tensor.shape else torch.empty(tensor.shape, device="meta")).stride()
                if tensor.stride() != stride or tensor.untyped_storage().nbytes() != tensor.nbytes:
                    _put(ref, tensor.new_empty_strided(tensor.shape, stride).copy_(tensor))
                    restored += 1
        self._adopted.clear()
        self._group.clear()
        return restored

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters whose storage is packed or channels_last."""
        return sum(ref.tensor().nbytes for ref in self._adopted if ref.owner() is not None)

    def _resolve(self, source: WeightSource) -> torch.Tensor:
        tensors = [ref.tensor() for ref in source.refs]
        if source.plain:
            return tensors[0]
        if source.channels_last:
            return self._channels_last(source.refs[0], tensors[0])
        self._group.update(dict.fromkeys(source.refs, source.refs))
        joined = _joined(tensors)
        return joined if joined is not None else self._pack(source.refs, tensors)

    def _channels_last(self, ref: WeightRef, tensor: torch.Tensor) -> torch.Tensor:
        if tensor.is_contiguous(memory_format=torch.channels_last):
            return tensor
        return self._adopt(ref, tensor.detach().clone(memory_format=torch.channels_last))

    def _pack(self, refs: tuple[WeightRef, ...], tensors: list[torch.Tensor]) -> torch.Tensor:
        packed = torch.empty((sum(t.shape[0] for t in tensors), *tensors[0].shape[1:]), dtype=tensors[0].dtype, device=tensors[0].device)
        for ref, tensor, part in zip(refs, tensors, packed.split([t.shape[0] for t in tensors]), strict=True):
            part.copy_(tensor)
            self._adopt(ref, part)
        return packed

    def _adopt(self, ref: WeightRef, storage: torch.Tensor) -> torch.Tensor:
        self._adopted.add(ref)
        self._touched.setdefault(ref, torch.empty_like(ref.tensor(), device="meta"))
        return _put(ref, storage)


def _table(ref: WeightRef) -> dict[str, Any]:
    module = ref.module()
    for table in (module._parameters, module._buffers):
        if ref.name in table:
            return table
    return module.__dict__


def _put(ref: WeightRef, storage: torch.Tensor) -> torch.Tensor:
    """Let the module's tensor be ``storage``. A new Parameter object: ``.data =`` would break inference parameters."""
    table = _table(ref)
    old = table[ref.name]
    new = torch.nn.Parameter(storage, requires_grad=old.requires_grad) if isinstance(old, torch.nn.Parameter) else storage
    new.__dict__.update(old.__dict__)
    table[ref.name] = new
    return new


def _joined(tensors: list[torch.Tensor]) -> torch.Tensor | None:
    """One view over tensors that lie behind one another in one storage; None when they don't."""
    first = tensors[0]
    offset, storage = first.storage_offset(), first.untyped_storage().data_ptr()
    for tensor in tensors:
        if tensor.untyped_storage().data_ptr() != storage or tensor.storage_offset() != offset or not tensor.is_contiguous():
            return None
        offset += tensor.numel()
    rows = sum(tensor.shape[0] for tensor in tensors)
    return first.detach().as_strided((rows, *first.shape[1:]), first.stride())
