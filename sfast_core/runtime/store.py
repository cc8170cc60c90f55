"""The weight store: lays out a module's own tensors as programs want them, and gives them back as they were.

A layout says what is done (:mod:`..weights.layout`), the store when it may be done and when it is undone. Parameters
stay the objects that they are, with the same values and shapes: whoever writes to them in place writes to what graphs
read, and whoever holds them (an optimizer, an average) holds the module's. A tensor whose memory somebody else sees, or
that is being trained, isn't touched.

The store holds no tensor. It looks each up in the module at each call, so it finds weights that the host has replaced
and lays them out anew, and a model that the host moves off the GPU is gone from there.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, NamedTuple, TypeVar

import torch

from ..reporting.reasons.memory import BESIDE
from ..weights.arriving import Arriving
from ..weights.bound import Bound
from ..weights.errors import WeightsChanged, WeightsElsewhere
from ..weights.layout import Layout, Weight
from ..weights.layouts import layouts
from ..weights.memory import Strides, gradients_wanted, is_shared, lay, move, own_copy
from ..weights.offload import Arrival, Offload
from ..weights.part import is_plain
from ..weights.ref import WeightRef
from ..weights.saving import PlainWhenSaved
from ..weights.unwatched import unwatched
from .any_store import Store
from .copies import Copies
from .weight_checks import check_weights, is_on, settle, tensor_of, trainable

K = TypeVar("K")
V = TypeVar("V")


class _Own(NamedTuple):
    """The shape and strides in which a module had a weight."""

    ref: WeightRef
    shape: torch.Size
    strides: Strides


class WeightStore(Store):
    """Lays out one module's weights. Not thread-safe but for :meth:`plain`: its caller holds :attr:`lock`.

    :class:`~.any_store.Store` says what its methods are for; here is what they do besides.
    """

    def __init__(self, offload: Offload | None = None) -> None:
        self.lock = threading.RLock()
        self._offload = offload or Offload()
        self._layouts = layouts()
        self.copies = Copies(WeightRef.tensor)
        self._wanted: dict[WeightRef, Weight] = {}  # the layout that each weight has which isn't plain
        # all that were ever laid out, by the module's id too: hosts keep such parameters and may put them back
        self._own: dict[tuple[WeightRef, int], _Own] = {}
        self._hooks: dict[str, tuple[PlainWhenSaved, weakref.ref[torch.nn.Module], Any]] = {}  # by the module's path
        self._left: set[WeightRef] = set()  # never to be laid out, see leave()
        self._trained = False
        # whether some weights whose layout changes strides have the program's strides; or the module's own
        self._some_turned = self._some_plain = False
        self._running: set[object] = set()  # one for each run of the module's own forward

    def may_pack(self, weight: Weight, device: torch.device | None = None) -> bool:
        """Whether a weight may be laid out as its layout says: its tensors have no other one, and may have this.

        A weight that has to be brought to ``device`` is laid out on the way, and stays as it is in main memory.
        """
        layout = self._layouts.get(weight.layout)
        if layout is not None and layout.beside:
            return layout.why_not(weight.refs) is None and not any(self._elsewhere(ref, device) for ref in weight.refs)
        if (
            layout is None
            or any(self._wanted.get(ref, weight) != weight for ref in weight.refs)
            or layout.why_not(weight.refs)
        ):
            return False
        if device is not None:
            here = tuple(ref for ref in weight.refs if not self._offload.away(ref, ref.tensor(), device))
            if len(here) < len(weight.refs):
                return self._why_not(here) is None
        elif len({ref.tensor().device for ref in weight.refs}) > 1:
            return False
        return layout.laid(weight.refs) is not None or self._why_not(weight.refs) is None

    def leave(self, refs: Collection[WeightRef]) -> None:
        """Those that were laid out already are given back."""
        self._left |= set(refs)
        self._restore({member for ref, weight in self._wanted.items() if ref in refs for member in weight.refs})

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Those that were turned back to the module's own strides are turned again; nobody moves them in a call.

        Raises:
            WeightsElsewhere: another thread is running the module's own forward, which needs those strides.
        """
        if self._some_plain:
            self._some_turned, self._some_plain = True, False
            self._nobody_runs()
            settle(device)
            for ref, layout in self._turned():
                if is_on(device, ref) and self._why_not((ref,)) is None and layout.why_not((ref,)) is None:
                    layout.lay((ref,))
        self.copies.begin_call(self.period())
        yield

    def lay_again(self, device: torch.device) -> None:
        if self._some_plain:
            with self.pinned(device):
                pass

    @contextmanager
    def plain(self) -> Iterator[None]:
        """So ``weight.view(channels, -1)`` works, and results have the bits and strides that they have without us."""
        run = object()
        self._running.add(run)
        try:
            if self._some_turned:  # whoever sets this then looks at _running, where this run is by now
                with self.lock:
                    self.lay_plain()
            yield
        finally:
            self._running.discard(run)

    def renew(self) -> None:
        self.lock, self._running = threading.RLock(), set()

    def lay_plain(self) -> None:
        """A weight whose memory somebody else sees by now stays as it is."""
        if not self._some_turned or not settle(
            *{tensor.device for ref, _ in self._turned() if (tensor := tensor_of(ref)) is not None}
        ):
            return
        self._some_plain = True
        with unwatched():
            for ref, _ in self._turned():
                if (tensor := tensor_of(ref)) is not None:
                    lay(tensor, self._own_strides(ref, tensor))
        self._some_turned = False

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """Where a weight isn't on ``device``, none has been laid out."""
        check_weights(weights, device)
        with torch.inference_mode(False), torch.no_grad():
            return [self._resolve(weight) for weight in weights]

    def resolve(
        self, weights: Sequence[Weight], device: torch.device, arrivals: Sequence[Arrival]
    ) -> list[torch.Tensor | Arriving]:
        brought: dict[int, Arriving] = {}
        for index, weight in enumerate(weights):
            functions = [
                self._offload.held(found, device) if (found := self._offload.functions(ref)) else ()
                for ref in weight.refs
            ]
            away = [ref for ref in weight.refs if self._offload.away(ref, ref.tensor(), device)]
            if (away or any(functions)) and self._layouts[weight.layout].beside:
                raise WeightsChanged(f"the weight {weight} has to be brought at each call")
            if away or any(functions):
                for ref in away:
                    self._offload.pin(ref, ref.tensor())
                brought[index] = Arriving.of(weight, self._layouts[weight.layout], functions, arrivals[index], device)
        if not brought:
            return [*self.tensors(weights, device)]
        check_weights([*weights])
        here = iter(self.tensors([weight for index, weight in enumerate(weights) if index not in brought], device))
        return [brought[index] if index in brought else next(here) for index in range(len(weights))]

    def watch(self, weights: Sequence[Weight]) -> Callable[[], bool]:
        return self._offload.watch([ref for weight in weights for ref in weight.refs])

    def begin_sampling(self, steps: int | None = None) -> None:
        self.steps = steps
        self._offload.begin()

    def end_sampling(self) -> None:
        self.steps = None
        self._offload.end()

    def period(self) -> Hashable:
        return self._offload.period()

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        return self._offload.watch_pins(tensors)

    def bind(self, weights: Sequence[Weight], tensors: Sequence[torch.Tensor | Arriving]) -> Bound:
        """Remember where ``tensors``, just resolved for ``weights``, lie."""
        return Bound(tensors, weights, self._layouts)

    def leave_to_autograd(self) -> None:
        """An optimizer makes its state with the strides that parameters have at its first step, some alike for all."""
        self._trained = True
        self._restore(
            {member for ref, weight in self._wanted.items() if trainable(tensor_of(ref)) for member in weight.refs}
        )

    def restore(self) -> int:
        """A host may keep laid-out parameters and put them back later (a LoRA is taken off): call it again then."""
        self._own = {place: own for place, own in self._own.items() if own.ref.owner() is not None}
        restored = self._restore([own.ref for own in self._own.values()])
        self._wanted.clear()
        self.copies.drop()
        self._some_turned = self._some_plain = False
        while self._hooks:
            self._hooks.popitem()[1][2].remove()
        return restored

    @property
    def adopted_bytes(self) -> int:
        return sum(tensor.nbytes for ref in self._wanted if (tensor := tensor_of(ref)) is not None)

    # -- laying out -------------------------------------------------------------------------------------------------

    def _resolve(self, weight: Weight) -> torch.Tensor:
        layout = self._layouts[weight.layout]
        if layout.beside:
            return self.copies.tensor(weight)
        laid = layout.laid(weight.refs)
        return laid if laid is not None else self._lay(weight, layout)

    def _lay(self, weight: Weight, layout: Layout) -> torch.Tensor:
        if reason := layout.why_not(weight.refs):
            raise WeightsChanged(reason)
        self._nobody_runs()  # first: an operator at work holds the memory that it reads
        self._adopt(weight.refs)
        for ref in weight.refs:
            if not layout.keeps_strides:
                self._when_saved(ref)
                self._some_turned = True
            _put(self._wanted, ref, weight)
        if not layout.keeps_strides:
            self._nobody_runs()
            settle(*{ref.tensor().device for ref in weight.refs})
        return layout.lay(weight.refs)

    def _turned(self) -> list[tuple[WeightRef, Layout]]:
        """The weights whose layout changes their strides, each with that layout."""
        layouts = self._layouts
        return [
            (ref, layouts[weight.layout])
            for ref, weight in self._wanted.items()
            if not layouts[weight.layout].keeps_strides
        ]

    def _adopt(self, refs: tuple[WeightRef, ...]) -> None:
        """Remember shape and strides of weights that are about to be laid out.

        No variable of ours may hold one meanwhile: references are counted to see whether somebody else has its memory.

        Raises:
            WeightsChanged: they must not be laid out.
        """
        if reason := self._why_not(refs):
            raise WeightsChanged(reason)
        for ref in refs:
            known, tensor = self._own.get((ref, id(ref.module()))), ref.tensor()
            if known is None or known.ref.owner() is not ref.owner():
                _put(self._own, (ref, id(ref.module())), _Own(ref, tensor.shape, tensor.stride()))
            del tensor  # references to weights are counted

    def _why_not(self, refs: tuple[WeightRef, ...]) -> str | None:
        """Why these weights must not be laid out, or None."""
        for ref in refs:
            if ref in self._left:
                return f"the model asks how the weight {ref} lies"
            if ref.name not in ref.table():
                return f"the weight {ref} is computed anew each time"
            if not is_plain(ref.tensor()):
                return f"the weight {ref} is a {type(ref.tensor()).__name__}"
            if (self._trained and trainable(ref.tensor())) or (
                not self._made(ref.tensor()) and gradients_wanted(ref.table(), ref.name)
            ):
                return f"the weight {ref} is being trained"
            if is_shared(ref.tensor(), self._made(ref.tensor())):
                return f"the memory of the weight {ref} is others' too"
        return None

    def _elsewhere(self, ref: WeightRef, device: torch.device | None) -> bool:
        """Whether a weight has to be brought, is no plain tensor, or is computed by the host at each use."""
        tensor = ref.tensor()
        away = device is not None and self._offload.away(ref, tensor, device)
        return away or not is_plain(tensor) or ref.name not in ref.table() or bool(self._offload.functions(ref))

    def _made(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in memory that one of the layouts has made."""
        return any(layout.holds(tensor) for layout in self._layouts.values())

    def _nobody_runs(self) -> None:
        """Check that the module's own forward isn't running, in another thread or around this very call.

        Raises:
            WeightsElsewhere: it is.
        """
        if self._running:
            self._some_plain = True
            raise WeightsElsewhere(BESIDE())

    # -- and back ---------------------------------------------------------------------------------------------------

    def _own_strides(self, ref: WeightRef, tensor: torch.Tensor) -> Strides:
        """The weight's own strides; contiguous ones where the host has put a tensor of another shape there."""
        own = self._own[ref, id(ref.module())]
        return own.strides if own.shape == tensor.shape else torch.empty(tensor.shape, device="meta").stride()

    @unwatched()
    def _restore(self, refs: Iterable[WeightRef]) -> int:
        restored = 0
        for ref in refs:
            self._wanted.pop(ref, None)
            tensor = tensor_of(ref)
            if tensor is None:
                continue
            own = self._own_strides(ref, tensor)
            made = self._made(tensor)
            if made or tensor.stride() != own:
                if made or not (settle(tensor.device) and lay(tensor, own)):
                    move(tensor, own_copy(tensor, own))
                restored += 1
        return restored

    def _when_saved(self, ref: WeightRef) -> None:
        """Have ``state_dict()`` of the weight's module return it in its own strides."""
        module, known = ref.module(), self._hooks.get(ref.path)
        if known is None or known[1]() is not module:
            hook = PlainWhenSaved(partial(_lay_plain_of, weakref.ref(self)))
            known = self._hooks[ref.path] = hook, weakref.ref(module), module.register_state_dict_pre_hook(hook)
        known[0].strides[ref.name] = self._own[ref, id(module)].strides


def _lay_plain_of(store: weakref.ref[WeightStore], *_: Any) -> None:
    if (alive := store()) is not None:
        with alive.lock:
            alive.lay_plain()


def _put(table: dict[K, V], key: K, value: V) -> None:
    """Set an item under this very key object: an equal older one may refer to a module that is gone."""
    table.pop(key, None)
    table[key] = value
