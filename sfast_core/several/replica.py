"""Copies of a module's weights on another device, made anew when the module's weights change.

PyTorch counts most writes to a weight, but none to an inference tensor or through ``weight.data``. So, as with other
copies of weights (:mod:`..runtime.copies`), these stay as they are only while the host promises that nobody writes and
no write is seen; at any other call all of them are made anew.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from ..runtime.any_store import Store
from ..runtime.copies import Copies
from ..weights import Arrival, Arriving, Bound, Weight, WeightRef, WeightsElsewhere


@dataclass
class _Copy:
    tensor: torch.Tensor
    made_of: tuple[int, ...]  # the addresses and versions of the module's tensors when they were copied
    unwritten: Hashable


class ReplicaStore(Store):
    """A weight store with copies of one module's weights on another device, in the layouts that its own store has.

    Not thread-safe: its caller holds :attr:`lock`. Nobody but programs sees the copies: what a store is told of
    samplings, layouts and training is told the module's own.

    Args:
        store: the module's own store.
        home: the module's device.
        there: the device of the copies.
        lock: of what runs there.
        room: is told how many bytes are about to be taken there, and raises if there isn't room.

    Attributes:
        device: the device of the copies.
        brought: the bytes that were copied in all.
        made: counts how often the copies were released.
        valid: the module's weights that were just found to be where they were, see :meth:`found_valid`.
    """

    def __init__(
        self,
        store: Store,
        home: torch.device,
        there: torch.device,
        lock: AbstractContextManager[Any],
        room: Callable[[int], None],
    ) -> None:
        self.lock, self.device, self.made = lock, there, 0
        self.valid: Bound | None = None
        self.copies = Copies(WeightRef.tensor)  # stays empty: a quality below exact is for one device
        self.brought = 0
        self._store, self._home, self._there, self._room = store, home, there, room
        self._copies: dict[Weight, _Copy] = {}

    @property
    def bytes(self) -> int:
        """The size of the copies."""
        return sum(copy.tensor.nbytes for copy in self._copies.values())

    def release_all(self) -> int:
        """Release all copies. Graphs that read them are captured anew. Returns their bytes."""
        with self.lock:
            freed = self.bytes
            if freed and self._there.type == "cuda":
                torch.cuda.synchronize(self._there)
            self._copies.clear()
            self.made += 1
            return freed

    def evict(self, wanted_bytes: int) -> int:
        """Release all copies if any memory is wanted: only a part of them would be of no use."""
        return self.release_all() if wanted_bytes > 0 else 0

    @contextmanager
    def found_valid(self, bound: Bound | None) -> Iterator[None]:
        """A context in which these weights needn't be compared: a program has just found them on its own device."""
        self.valid = bound
        try:
            yield
        finally:
            self.valid = None

    def may_pack(self, weight: Weight, device: torch.device | None = None) -> bool:
        """As the module's own store, since copies have the same layouts."""
        return self._store.may_pack(weight, self._home)

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """The copies. Raises as the module's store, and :class:`WeightsElsewhere` for a weight to be brought."""
        return [self._copies[weight].tensor for weight in self._made(weights, ())]

    def resolve(
        self, weights: Sequence[Weight], device: torch.device, arrivals: Sequence[Arrival]
    ) -> list[torch.Tensor | Arriving]:
        """The copies of what the module's own store finds for these arrivals. Raises as :meth:`tensors` does."""
        return [self._copies[weight].tensor for weight in self._made(weights, arrivals)]

    def bind(self, weights: Sequence[Weight], tensors: Sequence[torch.Tensor | Arriving]) -> Bound:
        """Remember where the copies lie, and what they are copies of."""
        return _BoundCopies(self._store.bind(weights, tensors), weights, weakref.ref(self))

    def period(self) -> Hashable:
        """The period in which nobody writes to the module's weights, as its store was told when the last call began."""
        return self._store.copies.unwritten

    def renew(self) -> None:
        """Start empty in a forked child process, which can't use the parent's memory."""
        self._copies.clear()
        self.made += 1

    def _made(self, weights: Sequence[Weight], arrivals: Sequence[Arrival]) -> Sequence[Weight]:
        """Bring the copies of ``weights`` up to date, and return ``weights``."""
        sources = (
            self._store.resolve(weights, self._home, arrivals) if arrivals else self._store.tensors(weights, self._home)
        )
        here = [source for source in sources if isinstance(source, torch.Tensor)]
        if len(here) < len(sources):
            raise WeightsElsewhere("weights are brought to the device at each call")
        unwritten = self.period()
        wanted = [
            (weight, source, made_of)
            for weight, source, made_of in zip(weights, here, map(_seen, weights, here), strict=True)
            if (copy := self._copies.get(weight)) is None
            or (copy.made_of, copy.unwritten) != (made_of, unwritten)
            or unwritten is None
        ]
        new = sum(source.nbytes for weight, source, _ in wanted if not self._fits(weight, source))
        if new:
            self._room(new)
        with torch.inference_mode(False), torch.no_grad():
            for weight, source, made_of in wanted:
                tensor = (
                    self._copies[weight].tensor
                    if self._fits(weight, source)
                    else torch.empty_like(source, device=self._there if source.device == self._home else source.device)
                )
                tensor.copy_(source, non_blocking=True)
                self._copies[weight] = _Copy(tensor, made_of, unwritten)
                self.brought += source.nbytes
        return weights

    def _fits(self, weight: Weight, source: torch.Tensor) -> bool:
        copy = self._copies.get(weight)
        return copy is not None and (copy.tensor.shape, copy.tensor.dtype, copy.tensor.stride()) == (
            source.shape,
            source.dtype,
            _dense(source),
        )


class _BoundCopies(Bound):
    """As :class:`Bound`, for copies of weights.

    Args:
        own: of the copies' addresses and the module's tensors.
        weights: the weights.
        store: has the copies.
    """

    def __init__(self, own: Bound, weights: Sequence[Weight], store: weakref.ref[ReplicaStore]) -> None:
        self.pointers = own.pointers
        self._own, self._store, self._then = own, store, _now(store())
        self._with = None if (alive := store()) is None else alive.valid
        tensors = [ref.tensor() for weight in weights for ref in weight.refs]
        self._made_of = [weakref.ref(tensor) for tensor in tensors if not tensor.is_inference()]
        self._versions = [tensor._version for tensor in tensors if not tensor.is_inference()]

    @property
    def sources(self) -> list[int]:
        """The addresses of the module's tensors."""
        return self._own.sources

    def readable(self) -> bool:
        """Whether the copies are there, and the host's promise that nobody writes to the module's weights holds."""
        return self._then is not None and _now(self._store()) == self._then

    def current(self) -> bool:
        """Whether the module's tensors are those that were copied, at their addresses, and not seen written to."""
        store = self._store()
        known = (
            self._with is not None and store is not None and store.valid is self._with
        )  # these very weights were just compared
        return (
            self.readable()
            and (known or (self._own.readable() and self._own.current()))
            and [_version(made_of()) for made_of in self._made_of] == self._versions
        )


def _now(store: ReplicaStore | None) -> tuple[int, Hashable] | None:
    """Identifies the present copies and the period in which nobody writes. None where there is no such promise."""
    return None if store is None or store.period() is None else (store.made, store.period())


def _version(tensor: torch.Tensor | None) -> int:
    return -1 if tensor is None else tensor._version


def _seen(weight: Weight, source: torch.Tensor) -> tuple[int, ...]:
    tensors = [ref.tensor() for ref in weight.refs]
    versions = (
        number
        for tensor in tensors
        for number in (id(tensor), tensor.data_ptr(), -1 if tensor.is_inference() else tensor._version)
    )
    return (source.data_ptr(), *versions)


def _dense(tensor: torch.Tensor) -> tuple[int, ...]:
    return tuple(torch.empty_like(tensor, device="meta").stride())
