"""Weights under ComfyUI's dynamic VRAM: nothing is adopted, everything is asked for again at each call.

Where they lie is said by :mod:`.page`; what of a model is held during a call, and where the rest is, by
:mod:`.partly_resident`. A captured graph may read pages while they are resident and filled: the range is faulted in and
pinned as one for the length of a call (61 us, against 1 ms module by module), and filled again by the host's own
function where pages were evicted or the LoRA changed.

The signature of pages and the calls for the range are comfy-aimdo's own interface: where they are missing the model
runs as it was.
"""

from __future__ import annotations

import itertools
import operator
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

from ...reporting.reasons.memory import NOT_THERE, UNKNOWN_VRAM
from ...runtime.any_store import Store
from ...runtime.copies import Copies
from ...weights import (
    PLAIN,
    Arrival,
    Arriving,
    Bound,
    Layout,
    Layouts,
    Weight,
    WeightsChanged,
    WeightsElsewhere,
)
from ...weights.eight_bits import EIGHT_BITS
from .held_patches import HeldPatches
from .page import Page
from .partly_resident import (
    ROOM_BYTES,
    Asked,
    PartlyResident,
    computed_by_host,
    dtype_in_range,
    is_understood,
    let_go,
    pages_of,
    signature_of,
)


class DynamicStore(Store):
    """The weight store of one BaseModel that a dynamic patcher loads."""

    def __init__(self, base_model: torch.nn.Module) -> None:
        self._base_model = weakref.ref(base_model)
        self._filled: Any = None  # the page signature and the patches that all of the range was last filled for
        self._patches_filled: Any = None  # those that what is there of it was
        self._page = page = Page()
        self._patches = HeldPatches()
        self._asked = Asked()
        self._partly: PartlyResident | None = None  # during a call in which not all of it is resident
        self._layouts: dict[str, Layout] = {PLAIN: self._page}
        for name, kind in EIGHT_BITS.items():
            self._layouts[name] = layout = kind()
            layout.place = self._page.place  # type: ignore[method-assign]
        self.copies = Copies(lambda ref: page.laid((ref,)))

    def may_pack(self, weight: Weight, device: torch.device | None = None) -> bool:
        """Whether it is as it lies: the addresses are the host's.

        What is made of it may lie beside it, as long as all of the model is there.
        """
        layout = self._layouts.get(weight.layout)
        return layout is not None and (
            not layout.beside or (self._partly is None and layout.why_not(weight.refs) is None)
        )

    def restore(self) -> int:
        """Nothing was adopted; forget the copies."""
        self._page.forget()
        self.copies.drop()
        self._filled = None
        return 0

    @contextmanager
    def pinned(self, device: torch.device) -> Iterator[None]:
        """Hold every page for the length of a call, filled with the weights that the model has now.

        Of a model that doesn't fit, hold those that are there.

        Raises:
            WeightsElsewhere: this version of dynamic VRAM is another one, or a weight is where it isn't understood.
        """
        base_model = self._base_model()
        vbar = getattr(base_model, "dynamic_vbars", {}).get(device)
        if base_model is None or vbar is None or not is_understood(vbar):
            raise WeightsElsewhere(UNKNOWN_VRAM())
        patches = base_model.current_weight_patches_uuid
        if self._asked.pages == pages_of(vbar):
            with self._faulted(vbar) as signature:
                if signature is not None and (signature, patches) == self._filled:
                    self.copies.begin_call(self._filled)
                    yield
                    return
                if signature is None:
                    self._asked = self._asked.again()
        fill, free = partial(_fill, device=device), partial(_free_bytes, device)
        anew = patches != self._patches_filled
        with self._held(PartlyResident(vbar, _in_range(base_model), fill, self._asked, free, anew), patches):
            yield

    @contextmanager
    def _faulted(self, vbar: Any) -> Iterator[bytes | None]:
        """Within the block the whole range is resident and pinned. Gives the signature of its pages, or None where it
        isn't all there any more and nothing is pinned.
        """
        signature = vbar.fault(vbar.base_addr, vbar.offset)
        if signature is None:
            yield None
            return
        held = vbar.offset
        try:
            yield signature_of(signature, pages_of(vbar))
        except torch.cuda.OutOfMemoryError:
            self._asked = Asked()
            raise
        finally:
            let_go(vbar, held)

    def tensors(self, weights: Sequence[Weight], device: torch.device) -> list[torch.Tensor]:
        """The tensors for ``weights`` at addresses that stay. Inside :meth:`pinned` only."""
        layouts = self._layouts
        tensors = [
            self.copies.tensor(weight) if layouts[weight.layout].beside else layouts[weight.layout].laid(weight.refs)
            for weight in weights
        ]
        for weight, tensor in zip(weights, tensors, strict=True):
            if tensor is None or tensor.device != device:
                raise WeightsElsewhere(NOT_THERE(weight=weight, where=tensor and tensor.device, device=device))
        return tensors

    def resolve(
        self, weights: Sequence[Weight], device: torch.device, arrivals: Sequence[Arrival]
    ) -> list[torch.Tensor | Arriving]:
        """As :meth:`tensors`, for a model of which a part is resident and the rest is brought. Inside :meth:`pinned`
        only.
        """
        partly = self._partly
        if partly is None:
            return [*self.tensors(weights, device)]
        found: list[torch.Tensor | Arriving] = []
        for index, weight in enumerate(weights):
            if self._layouts[weight.layout].beside:
                raise WeightsChanged(f"not all of the model is there, of which the weight {weight} is made")
            (ref,) = weight.refs
            if partly.away(ref.module()):
                source = partly.source(ref)
                found.append(
                    Arriving.of(
                        weight,
                        self._page,
                        [self._patches.held(computed_by_host(ref), device)],
                        arrivals[index],
                        device,
                        [source],
                        [dtype_in_range(ref, source)],
                    )
                )
            else:
                found += self.tensors([weight], device)
        return found

    def watch(self, weights: Sequence[Weight]) -> Callable[[], bool]:
        """Whether the same modules are resident, at the same pages, and the others' weights where they were, with the
        same patches.
        """
        before = self._now()
        return lambda: self._now() == before

    def ask_again(self) -> None:
        """Ask the host for what isn't resident at the next call: it has made the model ready."""
        self._asked = self._asked.again()

    def _now(self) -> tuple[Any, ...] | None:
        if self._partly is None:
            return None
        return (self._partly.token, getattr(self._base_model(), "current_weight_patches_uuid", None))

    @contextmanager
    def _held(self, partly: PartlyResident, patches: Any) -> Iterator[None]:
        ran_out = False
        self._filled = None
        try:
            with torch.no_grad():
                partly.enter()
            self._patches_filled = patches
            if partly.whole:
                self._filled = (partly.signature, patches)
                self.copies.begin_call(self._filled)
            else:
                self._partly = partly
            yield
        except torch.cuda.OutOfMemoryError:
            ran_out = True
            raise
        finally:
            self._partly = None
            partly.leave(ran_out)

    def bind(self, weights: Sequence[Weight], tensors: Sequence[torch.Tensor | Arriving]) -> Bound:
        """Remember where the tensors lie, and what they were made from.
        It is to be asked inside :meth:`pinned` only.
        """
        if self._partly is not None:
            return _Partly(tensors, weakref.ref(self), self._now())
        return _Resident(tensors, weights, self._layouts)


def _in_range(base_model: torch.nn.Module) -> list[torch.nn.Module]:
    """The modules whose weights are in the host's range, or would be."""
    return [module for module in base_model.modules() if "_v" in module.__dict__]


def _fill(module: torch.nn.Module, device: torch.device) -> None:
    """Have the host bring a module's weights into its pages."""
    import comfy.ops

    dtype = getattr(module, "weight_comfy_model_dtype", None) or module.weight.dtype
    weight, bias, stream = comfy.ops.cast_bias_weight(module, None, dtype, device, dtype, offloadable=True)
    comfy.ops.uncast_bias_weight(module, weight, bias, stream)


def _free_bytes(device: torch.device) -> int:
    """What may be taken on a device without taking pages of models: of the driver, and of PyTorch's allocator."""
    if device.type != "cuda":
        return ROOM_BYTES
    kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return int(torch.cuda.mem_get_info(device)[0]) + kept


class _Partly(Bound):
    """What a graph reads of a model that is partly resident, as long as the same part is where it was."""

    def __init__(self, tensors: Sequence[Any], store: weakref.ref[DynamicStore], then: tuple[Any, ...] | None) -> None:
        super().__init__(tensors, [], {})
        self._store, self._then = store, then

    def readable(self) -> bool:
        """Whether the graph reads what the host has there now."""
        return self.current()

    def current(self) -> bool:
        """Whether the graph reads what the host has there now: that is the module's."""
        store = self._store()
        return store is not None and store._now() == self._then


class _Resident(Bound):
    """Tensors in pinned pages, and copies of small weights, which hold as long as the module has what they were copied
    from.

    So whether they may be read and whether they are the module's is one question.
    """

    def __init__(self, tensors: Sequence[Any], weights: Sequence[Weight], layouts: Layouts) -> None:
        refs = [ref for weight in weights for ref in weight.refs]
        # not the root's, which leads to the compiled state: a cycle
        self._own = [ref.module().__dict__ for ref in refs if ref.path]
        self._below = len(self._own) == len(refs)
        self._ranges = self._ranges_now()
        super().__init__(tensors, weights if self._below else [], layouts)
        self._of = list(map(weakref.ref, self._current()))  # another at the address of one isn't what was copied

    def readable(self) -> bool:
        """Whether the graph reads what the module has now."""
        return (
            self._below
            and super().readable()
            and self.current()
            and all(map(operator.is_, self._ranges_now(), self._ranges))
            and all(map(operator.is_, self._current(), map(weakref.ref.__call__, self._of)))
        )

    def _ranges_now(self) -> list[Any]:
        return list(map(dict.get, self._own, itertools.repeat("_v")))
