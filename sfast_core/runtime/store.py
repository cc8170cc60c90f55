"""A compiled module's weights: the module's own tensors, laid out as the fused graph wants them and held once.

A packed weight is the memory of the module's own parameters, each of which lies in a part of it; a channels_last one is turned where it
lies. The parameters stay the objects that they are, with the same values and shapes, so whoever writes to them in place reaches what a graph
reads, and whoever holds them (an optimizer, an average) holds the module's. What others see the memory of, or train, stays as it lies.

The store keeps no tensor itself. It asks the module each time, so a weight that the host has replaced is found, laid out anew if need be,
and never stale; and a model that the host moves away is gone from the GPU.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import torch
from torch.multiprocessing.reductions import StorageWeakRef

from ..capture.weights import WeightRef, WeightSource
from .bound import Bound as Bound
from .bound import table_of
from .memory import Strides, gradients_wanted, is_shared, lay, move, own_copy, parts
from .saving import PlainWhenSaved, tensor_at

K = TypeVar("K")
V = TypeVar("V")
_PLAIN = (torch.Tensor, torch.nn.Parameter)


class WeightsElsewhere(Exception):
    """The weights can't be read now: one isn't on the device that the program runs on, or another thread uses them as they lay before."""


class WeightsChanged(Exception):
    """A weight isn't what the program was made for: of another shape or dtype, gone, tied to another or no more, or nothing to lay out anew."""


class Store(Protocol):
    """What the engine asks of a module's weights. Not thread-safe but for :meth:`plain`: its caller holds :attr:`lock`."""

    lock: AbstractContextManager[Any]  #: held while a program runs; the engine sets it

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters whose storage is packed or channels_last."""

    def may_pack(self, refs: Sequence[WeightRef]) -> bool:
        """Whether these weights may share one storage; of a single one, whether it may be laid out anew."""

    def pinned(self, device: torch.device) -> AbstractContextManager[None]:
        """Hold the weights where programs read them for the length of a call.

        Raises:
            WeightsElsewhere: they can't be held on ``device`` now.
        """

    def tensors(self, sources: Sequence[WeightSource], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``sources``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone, or no more at all of its addresses.
            WeightsElsewhere: a weight isn't on ``device``.
            WeightsChanged: two weights are one by now, or one may not be laid out as it is wanted any more.
        """

    def bind(self, sources: Sequence[WeightSource], tensors: list[torch.Tensor]) -> Bound:
        """Remember where ``tensors``, just resolved for ``sources``, lie."""

    def plain(self) -> AbstractContextManager[None]:
        """For the length of a run of the module's own forward the weights have the strides that the module gave them."""

    def renew(self) -> None:
        """In a forked child: what other threads were doing is done by nobody."""

    def lay_plain(self) -> None:
        """Give the weights the strides that the module gave them, at the addresses that graphs read."""

    def leave_to_autograd(self) -> None:
        """Gradients are being recorded: what requires them is the module's again, and is laid out no more."""

    def restore(self) -> int:
        """Give every adopted parameter plain storage of its own again. Returns how many there were."""


class _Lay(NamedTuple):
    """How a module had a weight."""

    ref: WeightRef
    shape: torch.Size
    strides: Strides


class WeightStore:
    """Lays out one module's weights. Not thread-safe but for :meth:`plain`: its caller holds :attr:`lock`."""

    lock: AbstractContextManager[Any]

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self._group: dict[WeightRef, tuple[WeightRef, ...]] = {}
        self._packs: dict[tuple[WeightRef, ...], StorageWeakRef] = {}  # the memory that a group lies in
        self._parts: dict[int, StorageWeakRef] = {}  # that of each of its members; those that are gone drop out
        self._turned: dict[WeightRef, None] = {}  # wanted channels_last
        self._lay: dict[tuple[WeightRef, int], _Lay] = {}  # what was adopted at any time, by its module too: hosts hold on to such
        self._hooks: dict[str, tuple[PlainWhenSaved, weakref.ref[torch.nn.Module], Any]] = {}  # by the module's path
        self._trained = False
        self._some_turned = self._some_plain = False  # of those that are wanted channels_last
        self._running: set[object] = set()  # runs of the module's own forward

    def may_pack(self, refs: Sequence[WeightRef]) -> bool:
        """Whether these weights may share one storage: each is free, or already in this very group."""
        group = tuple(refs)
        if any(self._group.get(ref, group) != group for ref in group) or len(set(group)) != len(group):
            return False
        return len(set(map(_kind, group))) == 1 and (self._joined(group) is not None or self._why_not(group) is None)

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Hold the weights where programs read them for the length of a call. They stay by themselves, but some may lie plain for others.

        Raises:
            WeightsElsewhere: another thread is running the module's own forward, which reads them so.
        """
        if self._some_plain:
            self._some_turned, self._some_plain = True, False
            self._nobody_runs()
            _settle(device)
            for ref in self._turned:
                if _there(ref) is not None and self._why_not((ref,)) is None:
                    tensor = ref.tensor()
                    if tensor.dim() == 4 and tensor.device == device:
                        lay(tensor, _channels_last(tensor))
                    del tensor  # who holds a weight is counted
        yield

    @contextmanager
    def plain(self) -> Iterator[None]:
        """For the length of a run of the module's own forward the weights have the strides that the module gave them.

        What is written with those in mind (``weight.view(channels, -1)``) works, and the result has the bits and strides that it had without us.
        """
        run = object()
        self._running.add(run)
        try:
            if self._some_turned:  # set before it is asked whether somebody runs
                with self.lock:
                    self.lay_plain()
            yield
        finally:
            self._running.discard(run)

    def renew(self) -> None:
        """In a forked child: what other threads were doing is done by nobody."""
        self.lock, self._running = threading.RLock(), set()

    def lay_plain(self) -> None:
        """Give the weights that are channels_last for programs their own strides, at the addresses that graphs read.

        What others see the memory of by now stays as it lies.
        """
        if not self._some_turned or not _settle(*{tensor.device for ref in self._turned if (tensor := _there(ref)) is not None}):
            return
        self._some_plain = True
        for ref in self._turned:
            if (tensor := _there(ref)) is not None:
                lay(tensor, self._own_strides(ref, tensor))
        self._some_turned = False

    def tensors(self, sources: Sequence[WeightSource], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``sources``, laid out as they ask.

        Raises:
            ReferenceError: a weight is gone, or no more at all of its addresses.
            WeightsElsewhere: a weight isn't on ``device``; then none has been laid out anew.
            WeightsChanged: two weights are one by now, or one may not be laid out as it is wanted any more.
        """
        _check(sources, device)
        with torch.inference_mode(False), torch.no_grad():
            return [self._resolve(source) for source in sources]

    def bind(self, sources: Sequence[WeightSource], tensors: list[torch.Tensor]) -> Bound:
        """Remember where ``tensors``, just resolved for ``sources``, lie."""
        return Bound(tensors, {ref for source in sources for ref in source.refs})

    def leave_to_autograd(self) -> None:
        """Gradients are being recorded: what requires them is the module's again, and is laid out no more as long as it does.

        An optimizer makes its state at its first step, with the strides that parameters have then, and some need all alike.
        """
        self._trained = True
        if self._group or self._turned:
            wanted = [ref for ref in (*self._group, *self._turned) if _trainable(_there(ref))]
            self._restore({member for ref in wanted for member in self._group.get(ref, (ref,))})

    def restore(self) -> int:
        """Give every parameter that lies as the store lays them storage of its own again, in its own strides. Returns how many there were.

        A host that swaps parameters (a LoRA goes, and what it had replaced comes back) may bring such a layout back later: call it again.
        """
        self._lay = {place: lay for place, lay in self._lay.items() if lay.ref.owner() is not None}
        restored = self._restore([lay.ref for lay in self._lay.values()])
        self._group.clear()
        self._turned.clear()
        self._some_turned = self._some_plain = False
        while self._hooks:
            self._hooks.popitem()[1][2].remove()
        return restored

    @property
    def adopted_bytes(self) -> int:
        """The size of the parameters whose storage is packed or channels_last."""
        return sum(tensor.nbytes for ref in {**self._group, **self._turned} if (tensor := _there(ref)) is not None)

    # -- laying out ------------------------------------------------------------------------------------------------------

    def _resolve(self, source: WeightSource) -> torch.Tensor:
        first = source.refs[0]
        if source.channels_last and not first.tensor().is_contiguous(memory_format=torch.channels_last):
            self._turn(first)
        if not source.packed:
            return first.tensor()
        joined = self._joined(source.refs)
        return joined if joined is not None else self._pack(source.refs)

    def _turn(self, ref: WeightRef) -> None:
        self._adopt((ref,))
        self._when_saved(ref)
        self._some_turned = True
        _put(self._turned, ref, None)
        self._nobody_runs()
        tensor = ref.tensor()
        _settle(tensor.device)
        lay(tensor, _channels_last(tensor))

    def _pack(self, refs: tuple[WeightRef, ...]) -> torch.Tensor:
        if len(set(map(_kind, refs))) > 1:
            raise WeightsChanged(f"the weights {' and '.join(map(str, refs))} are not of one kind any more")
        self._adopt(refs)
        self._nobody_runs()
        for ref in refs:
            _put(self._group, ref, refs)
        tensors = [ref.tensor() for ref in refs]
        first, rows = tensors[0], sum(tensor.shape[0] for tensor in tensors)
        packed = torch.empty((rows, *first.shape[1:]), dtype=first.dtype, device=first.device)
        self._parts = {place: part for place, part in self._parts.items() if not part.expired()}
        self._packs[refs] = StorageWeakRef(packed.untyped_storage())
        for tensor, part in zip(tensors, parts(packed.untyped_storage(), tensors), strict=True):
            storage = StorageWeakRef(part.untyped_storage())
            self._parts[storage.cdata] = storage
            move(tensor, part)
        return packed

    def _joined(self, refs: tuple[WeightRef, ...]) -> torch.Tensor | None:
        """The memory that these lie in, behind one another, as one tensor; None when they don't."""
        pack = self._packs.get(refs)
        memory = None if pack is None else torch.UntypedStorage._new_with_weak_ptr(pack.cdata)
        if memory is None:
            return None
        tensors = [ref.tensor() for ref in refs]
        first, place = tensors[0], memory.data_ptr()
        for tensor in tensors:
            if tensor.data_ptr() != place or not tensor.is_contiguous() or tensor.shape[1:] != first.shape[1:] or tensor.dtype != first.dtype:
                return None
            place += tensor.nbytes
        rows = sum(tensor.shape[0] for tensor in tensors)
        return torch.empty(0, dtype=first.dtype, device=first.device).set_(memory, 0, (rows, *first.shape[1:]))  # type: ignore[call-overload]

    def _adopt(self, refs: tuple[WeightRef, ...]) -> None:
        """Remember how these lie. Nothing of ours may hold them when this is called: who does is counted.

        Raises:
            WeightsChanged: they are nothing to lay out anew.
        """
        if reason := self._why_not(refs):
            raise WeightsChanged(reason)
        for ref in refs:
            known, tensor = self._lay.get((ref, id(ref.module()))), ref.tensor()
            if known is None or known.ref.owner() is not ref.owner():
                _put(self._lay, (ref, id(ref.module())), _Lay(ref, tensor.shape, tensor.stride()))
            del tensor  # who holds a weight is counted

    def _why_not(self, refs: tuple[WeightRef, ...]) -> str | None:
        """Why these weights can't be laid out anew, or None."""
        for ref in refs:
            if ref.name not in table_of(ref):
                return f"the weight {ref} is computed anew each time"
            if type(ref.tensor()) not in _PLAIN:
                return f"the weight {ref} is a {type(ref.tensor()).__name__}"
            if (self._trained and _trainable(ref.tensor())) or (not self._in_a_pack(ref.tensor()) and gradients_wanted(table_of(ref), ref.name)):
                return f"the weight {ref} is being trained"
            if is_shared(ref.tensor(), self._in_a_pack(ref.tensor())):
                return f"the memory of the weight {ref} is others' too"
        return None

    def _in_a_pack(self, tensor: torch.Tensor) -> bool:
        return tensor.untyped_storage()._cdata in self._parts

    def _nobody_runs(self) -> None:
        """Raises :class:`WeightsElsewhere` where the module's own forward is running: in another thread, or around this very call."""
        if self._running:
            self._some_plain = True
            raise WeightsElsewhere("the model is running without Fast Compile too, at this very moment")

    # -- and back --------------------------------------------------------------------------------------------------------

    def _own_strides(self, ref: WeightRef, tensor: torch.Tensor) -> Strides:
        """The strides in which the module had the weight; those of a contiguous one where the host has put one of another shape there."""
        lay = self._lay[ref, id(ref.module())]
        return lay.strides if lay.shape == tensor.shape else torch.empty(tensor.shape, device="meta").stride()

    def _restore(self, refs: Iterable[WeightRef]) -> int:
        restored = 0
        for ref in refs:
            self._group.pop(ref, None)
            self._turned.pop(ref, None)
            tensor = _there(ref)
            if tensor is None:
                continue
            own = self._own_strides(ref, tensor)
            packed = self._in_a_pack(tensor)
            if packed or tensor.stride() != own:
                if packed or not (_settle(tensor.device) and lay(tensor, own)):
                    move(tensor, own_copy(tensor, own))
                restored += 1
        return restored

    def _when_saved(self, ref: WeightRef) -> None:
        """Let ``state_dict()`` of the weight's module give it in its own strides."""
        module, known = ref.module(), self._hooks.get(ref.path)
        if known is None or known[1]() is not module:
            hook = PlainWhenSaved(partial(_lay_plain_of, weakref.ref(self)))
            known = self._hooks[ref.path] = hook, weakref.ref(module), module.register_state_dict_pre_hook(hook)
        known[0].strides[ref.name] = self._lay[ref, id(module)].strides


def _lay_plain_of(store: weakref.ref[WeightStore], *_: Any) -> None:
    if (alive := store()) is not None:
        with alive.lock:
            alive.lay_plain()


def _put(table: dict[K, V], key: K, value: V) -> None:
    """Set an item, by this very key: an equal one may lead to a module that is there no more."""
    table.pop(key, None)
    table[key] = value


def _there(ref: WeightRef) -> torch.Tensor | None:
    """The tensor at this address, or None."""
    module = ref.owner()
    return None if module is None else tensor_at(module, ref.name)


def _trainable(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and tensor.requires_grad and not tensor.is_inference()


def _settle(*devices: torch.device) -> bool:
    """Wait for whoever reads weights on any stream of these devices; False where that can't be, within somebody's capture."""
    cuda = [device for device in devices if device.type == "cuda"]
    if cuda and torch.cuda.is_current_stream_capturing():
        return False
    for device in cuda:
        torch.cuda.synchronize(device)
    return True


def _channels_last(tensor: torch.Tensor) -> Strides:
    _, channels, height, width = tensor.shape
    return height * width * channels, 1, width * channels, channels


def _kind(ref: WeightRef) -> tuple[type, torch.dtype, torch.device, torch.Size]:
    """What those have in common that may share a storage."""
    tensor = ref.tensor()
    return torch.Tensor if type(tensor) is torch.nn.Parameter else type(tensor), tensor.dtype, tensor.device, tensor.shape[1:]


def _check(sources: Sequence[WeightSource], device: torch.device) -> None:
    """Whether each weight is where it is wanted, and a tensor of its own. Raises as :meth:`WeightStore.tensors` does."""
    seen: dict[int, WeightRef] = {}
    for source in sources:
        for ref in source.refs:
            tensor = ref.tensor()
            if tensor.device != device:
                raise WeightsElsewhere(f"the weight {ref} is on {tensor.device}, not on {device}")
            if (other := seen.setdefault(id(tensor), ref)) != ref:
                raise WeightsChanged(f"the weights {other} and {ref} are one tensor now")
