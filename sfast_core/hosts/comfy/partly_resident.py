"""A model under dynamic VRAM for the length of a call: which of its modules are in the range, and where the others'
weights are.

What is resident is the host's to decide. A range loses pages from its end on, so what is held is its beginning. Each
time that the host makes the model ready it is asked for all of it, as its own layers ask at each call: what it unloaded
meanwhile would stay away for good. The other modules' weights come from where the host itself would bring them: its
pinned buffer of the module, which it makes when it brings one, or the module's own tensors in main memory. All of it is
comfy-aimdo's and ComfyUI's own interface, in which a page is pinned as often as it was asked for; what is missing there
is asked for, and without it the model runs as it was.
"""

from __future__ import annotations

import functools
import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...reporting.reasons.memory import COMPUTED, IN_A_FILE, NOT_PAGED
from ...weights import Plain, WeightRef, WeightsElsewhere
from ...weights.offload import Computed
from ...weights.part import is_plain
from .offload import FUNCTIONS, is_of_host

PAGE_BYTES = 32 << 20  #: comfy-aimdo's
ROOM_BYTES = 1 << 30  #: for what is computed, where the model would take all memory
_AT_ONCE = 4  # pages that are asked for
_ABOUT = 1 / 16  # of a range, by which another turn may have more or less room
_SERIAL_BYTES = 4  # of a page in a signature
_ORDER = ("weight", "bias")  # in a pinned buffer
_SUBSETS = ("weights", "weights-loaded")  # of pinned buffers: of what was never in the range, and of what was
_INTERFACE = ("fault", "unpin", "base_addr", "offset", "get_residency", "get_watermark", "set_watermark")


@dataclass
class Asked:
    """What the host was asked for since it made the model ready.

    Attributes:
        pages: how many, from the range's beginning, a call holds where they are there; None: they are asked for next.
        before: the pages of the turn before that, or None.
        not_pinned: modules whose weights it has brought, and has no pinned buffer for all the same.
    """

    pages: int | None = None
    before: int | None = None
    not_pinned: weakref.WeakSet[torch.nn.Module] = field(default_factory=weakref.WeakSet)

    def again(self) -> Asked:
        """What to ask in another turn: all of it, with what the turn before had in mind."""
        return Asked(before=self.before if self.pages is None else self.pages)


class PartlyResident:
    """What there is during one call, in which this is entered and left.

    Args:
        vbar: the host's range.
        modules: those with memory in it.
        fill: has the host bring a module's weights: into its pages, where there are some.
        asked: since the host made the model ready.
        free: the bytes that what is computed may take.
        anew: the host's patches are others than when pages were filled.

    Attributes:
        signature: of the pages that are held.
        token: equal at two calls where the same modules are there, at addresses that stay, and the others' weights in
            the same memory, pinned or not alike.
    """

    def __init__(
        self,
        vbar: Any,
        modules: Sequence[torch.nn.Module],
        fill: Callable[[torch.nn.Module], None],
        asked: Asked,
        free: Callable[[], int],
        anew: bool = False,
    ) -> None:
        self._vbar, self._fill, self._asked, self._free, self._anew = vbar, fill, asked, free, anew
        self._modules = modules
        self._held = 0  # bytes, from the range's beginning
        self._away: dict[int, _Away] = {}
        self.signature = b""
        self.token: tuple[Any, ...] = ()

    @property
    def whole(self) -> bool:
        """Whether no module's weights have to be brought."""
        return not self._away

    def enter(self) -> None:
        """Hold what is resident, filled.

        Raises:
            WeightsElsewhere: the host keeps a weight in a way that isn't understood.
        """
        self.signature = self._hold()
        modules = [module for module in self._modules if not self._is_there(module)]
        away = list(map(_Away, modules))
        if self._have_pinned(modules, away):  # the host may have given one's buffer to another
            away = list(map(_Away, modules))
        self._away = dict(zip(map(id, modules), away, strict=True))
        self.token = tuple(each.token for each in away)

    def _have_pinned(self, modules: Sequence[torch.nn.Module], away: Sequence[_Away]) -> bool:
        """Have the host bring, once, what isn't in pinned memory: it makes some for that. Returns whether it was
        asked.
        """
        asked = False
        for module, found in zip(modules, away, strict=True):
            if not found.pinned and module not in self._asked.not_pinned:
                asked = True
                self._fill(module)
                if not _Away(module).pinned:
                    self._asked.not_pinned.add(module)
        return asked

    def _hold(self) -> bytes:
        """Hold the range's beginning: what is there of it, and where the host is to be asked, as much as it gives.
        Returns the signature of its pages.
        """
        ask, whole = self._asked.pages is None, pages_of(self._vbar)
        pages = min(whole if self._asked.pages is None else self._asked.pages, _resident(self._vbar))
        while pages and (found := self._vbar.fault(self._vbar.base_addr, self._bytes(pages))) is None:
            pages = min(pages - 1, self._vbar.get_watermark())
        signature, self._held = signature_of(found, pages) if pages else b"", self._bytes(pages)
        while ask and pages < whole:  # little by little: asked for more than there is, the host gives nothing
            more = min(_AT_ONCE, whole - pages)
            found = self._vbar.fault(self._vbar.base_addr + self._held, self._bytes(pages + more) - self._held)
            if found is None:
                break
            pages, signature = pages + more, signature + signature_of(found, more)
            self._held = self._bytes(pages)
        if ask:
            pages = self._asked.pages = self._leave_room(pages)
        mark(self._vbar, self._held)
        return signature[: pages * _SERIAL_BYTES]

    def _leave_room(self, pages: int) -> int:
        """Give back the end of what is held where little is free beside it: what is computed needs some, and while it
        is captured nothing can be evicted. Returns how many pages are held still.

        A graph reads pages where they are, so that a turn takes what the one before had, if that is about as much.
        """
        short = max(0, ROOM_BYTES - self._free())
        left, before, whole = max(0, pages + -short // PAGE_BYTES), self._asked.before, pages_of(self._vbar)
        if before is not None and left < whole and before <= pages and abs(before - left) <= whole * _ABOUT:
            left = before
        if left < pages:
            held = self._bytes(left)
            self._vbar.unpin(self._vbar.base_addr + held, self._held - held)
            self._held = held
        return left

    def _bytes(self, pages: int) -> int:
        return int(min(pages * PAGE_BYTES, self._vbar.offset))

    def _is_there(self, module: torch.nn.Module) -> bool:
        """Whether a module's pages are held, and the host has brought its weights there, by now at the latest."""
        start = module._v[1] - self._vbar.base_addr
        stop = start + module._v[2]
        if stop > self._held:
            return False
        pages = slice(start // PAGE_BYTES * _SERIAL_BYTES, -(-stop // PAGE_BYTES) * _SERIAL_BYTES)
        if self._anew or not _is_filled(module, self.signature[pages]):
            self._fill(module)  # beside the range, where it finds that memory is short
        return _is_filled(module, self.signature[pages])

    def leave(self, memory_ran_out: bool = False) -> None:
        """Let go of everything. ``memory_ran_out``: there was too little beside what was held, so let there be more
        next time.
        """
        let_go(self._vbar, self._held)
        self._held = 0
        if memory_ran_out:
            self._vbar.free_memory(ROOM_BYTES)
            self._asked.pages = self._asked.before = None

    def away(self, module: torch.nn.Module) -> bool:
        """Whether a module's weights have to be brought."""
        return id(module) in self._away

    def source(self, ref: WeightRef) -> torch.Tensor:
        """The tensor in main memory that is a weight of such a module."""
        whole = self._away[id(ref.module())].tensors.get(ref.name)
        if whole is None:
            raise WeightsElsewhere(NOT_PAGED(weight=ref))
        return whole if ref.part is None else ref.part.at(whole, ref)


def computed_by_host(ref: WeightRef) -> tuple[Computed, ...]:
    """What the host computes of a weight that isn't resident, each time that it uses it: a LoRA.

    Raises:
        WeightsElsewhere: a function is another node's, or the weight is quantised.
    """
    own = ref.module().__dict__
    others, lora = own.get(FUNCTIONS.get(ref.name, "")) or (), own.get(f"{ref.name}_lowvram_function")
    found = (*(() if lora is None else (lora,)), *others)
    if found and (ref.part is not None or not all(map(is_of_host, found))):
        raise WeightsElsewhere(COMPUTED(kind=type(ref.module()).__name__))
    return found


def own_tensor(ref: WeightRef) -> torch.Tensor:
    """A module's own tensor in main memory, in the place of the one that would be in the range.

    Where that is in another dtype it is as that one would be, without values: whoever wants those has them brought.
    """
    tensor = Plain().laid((ref,))
    if is_plain(tensor) and (dtype := dtype_in_range(ref, tensor)) != tensor.dtype:
        return torch.empty_strided(tensor.shape, tensor.stride(), dtype=dtype, device=tensor.device)
    return tensor


def dtype_in_range(ref: WeightRef, tensor: torch.Tensor) -> torch.dtype:
    """In which the host brings a weight that is ``tensor`` in main memory: the model's may not be the file's."""
    dtype = None if ref.part is not None else getattr(ref.module(), f"{ref.name}_comfy_model_dtype", None)
    return tensor.dtype if dtype is None else dtype


class _Away:
    """A module whose weights have to be brought, and where from: its pinned buffer, or its own tensors.

    Attributes:
        token: equal where they are in the same memory, pinned or not alike.
        pinned: whether all of it is.
    """

    def __init__(self, module: torch.nn.Module) -> None:
        self._own = {name: tensor for name in _ORDER if (tensor := module._parameters.get(name)) is not None}
        if any(tensor.is_meta for tensor in self._own.values()):
            raise WeightsElsewhere(IN_A_FILE(kind=type(module).__name__))
        self._buffer = _buffer_of(module)
        memory = self._own.values() if self._buffer is None else (self._buffer,)
        self.token = tuple((tensor.data_ptr(), tensor.is_pinned()) for tensor in memory)
        self.pinned = all(pinned for _, pinned in self.token)

    @functools.cached_property
    def tensors(self) -> dict[str, torch.Tensor]:
        """The tensors in main memory that are its weights, by name."""
        if self._buffer is None:
            return self._own
        views = sys.modules["comfy.memory_management"].interpret_gathered_like(list(self._own.values()), self._buffer)
        return dict(zip(self._own, views, strict=True))


def _buffer_of(module: torch.nn.Module) -> torch.Tensor | None:
    """The host's pinned buffer of a module, if there is one that can be read."""
    get_pin = getattr(sys.modules.get("comfy.pinned_memory"), "get_pin", None)
    readable = hasattr(sys.modules.get("comfy.memory_management"), "interpret_gathered_like")
    if get_pin is None or not readable or not hasattr(module, "_pin_state"):
        return None
    pins = (get_pin(module, subset) for subset in _SUBSETS)
    return next((pin for pin in pins if pin is not None), None)


def is_understood(vbar: Any) -> bool:
    """Whether a range is of the kind that is known."""
    return all(hasattr(vbar, name) for name in _INTERFACE)


def pages_of(vbar: Any) -> int:
    """How many pages hold what there is in a range."""
    return int(-(-vbar.offset // PAGE_BYTES))


def mark(vbar: Any, held: int) -> None:
    """See to it that so many bytes of a range's beginning count as being in it.

    In search of room comfy-aimdo lowers a range's mark past pages that are held, to its very beginning where it finds
    none. Above the mark nothing is to be had or filled, and what is let go of there goes.
    """
    if vbar.get_watermark() * PAGE_BYTES < held:
        vbar.set_watermark(held)


def let_go(vbar: Any, held: int) -> None:
    """Let go of a range's beginning, so many bytes, which stays there until somebody needs the memory."""
    mark(vbar, held)
    if held:
        vbar.unpin(vbar.base_addr, held)


def signature_of(found: Any, pages: int) -> bytes:
    """The signature of so many pages, which is a part of what the host says of its range."""
    return bytes(found)[: pages * _SERIAL_BYTES]


def _resident(vbar: Any) -> int:
    """How many pages are there, from the range's beginning on."""
    flags = vbar.get_residency()[: pages_of(vbar)]
    return next((page for page, flag in enumerate(flags) if not flag & 1), len(flags))


def _is_filled(module: torch.nn.Module, signature: bytes) -> bool:
    found = module.__dict__.get("_v_signature")
    return found is not None and bytes(found)[: len(signature)] == signature
