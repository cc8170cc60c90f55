"""A model under dynamic VRAM that doesn't fit: which of its modules are in the range for the length of a call, and
where the others' weights are.

What is resident is the host's to decide: the modules whose pages are there when a call begins are held there for its
length. Each time that it makes the model ready it is asked for the others, as its own layers ask at each call: what it
unloaded meanwhile would stay away for good. Their weights come from where the host itself would bring them: its pinned
buffer of the module, which it makes when it brings one, or the module's own tensors in main memory. All of it is
comfy-aimdo's and ComfyUI's own interface: what is missing there is asked for, and without it the model runs as it was.
"""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from ...reporting.reasons.memory import ANOTHER_DTYPE, COMPUTED, IN_A_FILE, NOT_PAGED, PAGES_MOVED
from ...weights import Plain, WeightRef, WeightsElsewhere
from ...weights.offload import Computed
from .offload import FUNCTIONS, is_of_host

PAGE_BYTES = 32 << 20  #: comfy-aimdo's
ROOM_BYTES = 1 << 30  #: for what is computed: left where all is full, and asked of the range where memory ran out
_ORDER = ("weight", "bias")  # in a pinned buffer
_SUBSETS = ("weights", "weights-loaded")  # of pinned buffers: of what was never in the range, and of what was


Modules = weakref.WeakSet[torch.nn.Module]


@dataclass
class Asked:
    """What the host was asked for since it made the model ready.

    Attributes:
        all: whether it was asked to have every module resident.
        left: modules whose pages were given back: there was no more memory, and a call needs some.
        not_pinned: those whose weights it has brought, and has no pinned buffer for all the same.
    """

    all: bool = False
    left: Modules = field(default_factory=weakref.WeakSet)
    not_pinned: Modules = field(default_factory=weakref.WeakSet)


class PartlyResident:
    """What there is during one call, in which this is entered and left.

    Args:
        vbar: the host's range.
        modules: those with memory in it.
        fill: has the host bring a module's weights: into its pages, where there are some.
        asked: since it made the model ready.

    Attributes:
        token: equal at two calls where the same modules are at the same pages, and the others' weights in the same
            memory, pinned or not alike.
    """

    def __init__(
        self, vbar: Any, modules: Sequence[torch.nn.Module], fill: Callable[[torch.nn.Module], None], asked: Asked
    ) -> None:
        self._vbar, self._modules, self._fill, self._asked = vbar, modules, fill, asked
        self._held: list[torch.nn.Module] = []
        self._away: dict[int, dict[str, torch.Tensor]] = {}
        self.token: tuple[Any, ...] = ()

    def enter(self) -> None:
        """Hold what is resident, filled.

        Raises:
            WeightsElsewhere: the host keeps a weight in a way that isn't understood.
        """
        held, loose = self._hold_filled(), set[int]()
        self.token = tuple(
            (held[module],) if module in held else self._bring(module, loose) for module in self._modules
        )
        self._hold_again(held, loose)

    def _hold_filled(self) -> dict[torch.nn.Module, bytes]:
        """The modules that are resident, with the signatures of their pages."""
        there, ask, held, brought = _pages(self._vbar), not self._asked.all, {}, []
        for module in self._modules:
            was_there = _is_there(module, self._vbar, there)
            if module in self._asked.left or not (was_there or ask):
                continue
            signature = self._hold(module)
            if signature is None:
                continue
            if signature != _bytes(module.__dict__.get("_v_signature")):
                self._fill(module)
                self._renew(module, signature)
            held[module] = signature
            if not was_there:
                brought.append(module)
        self._asked.all = True
        if ask and len(held) + len(self._asked.left) < len(self._modules):
            self._leave_room(brought, held)
        return held

    def _leave_room(self, brought: list[torch.nn.Module], held: dict[torch.nn.Module, bytes]) -> None:
        """All memory is taken: give pages of what was just brought back, the last first, before something is captured,
        when nothing can be evicted.
        """
        room, pages = 0, set[int]()
        while brought and room < ROOM_BYTES:
            module = brought.pop()
            room += module._v[2]  # type: ignore[index]
            pages.update(_pages_of(module, self._vbar))
            self._vbar.unpin(*module._v[1:])  # type: ignore[index]
            self._held.remove(module)
            self._asked.left.add(module)
            del held[module]
        self._hold_again(held, pages)
        if room:
            self._vbar.free_memory(room)

    def _hold_again(self, held: dict[torch.nn.Module, bytes], loose: set[int]) -> None:
        """Neighbours share pages: where the host doesn't count, letting go of one has let go of the other's."""
        for module, signature in held.items() if loose else ():
            if not loose.isdisjoint(_pages_of(module, self._vbar)):
                self._renew(module, signature)

    def _renew(self, module: torch.nn.Module, signature: bytes) -> None:
        """Hold a module once, as before, whether or not the host counts how often."""
        self._vbar.unpin(*module._v[1:])  # type: ignore[index]
        if self._hold(module, again=True) != signature:
            raise WeightsElsewhere(PAGES_MOVED())

    def _bring(self, module: torch.nn.Module, loose: set[int]) -> tuple[Any, ...]:
        """Note where a module's weights are that aren't resident: in pinned memory, if the host has some."""
        weights = _brought_from(module)
        if not _pinned(weights) and module not in self._asked.not_pinned:
            self._fill(module)
            loose.update(_pages_of(module, self._vbar))
            weights = _brought_from(module)
            if not _pinned(weights):
                self._asked.not_pinned.add(module)
        self._away[id(module)] = weights
        return tuple((tensor.data_ptr(), tensor.is_pinned()) for tensor in weights.values())

    def leave(self, memory_ran_out: bool = False) -> None:
        """Let go of everything. ``memory_ran_out``: there was too little beside what was held, so let there be more
        next time.
        """
        for module in self._held:
            self._vbar.unpin(*module._v[1:])  # type: ignore[index]
        self._held = []
        if memory_ran_out:
            self._vbar.free_memory(ROOM_BYTES)

    def away(self, module: torch.nn.Module) -> bool:
        """Whether a module's weights have to be brought."""
        return id(module) in self._away

    def source(self, ref: WeightRef) -> torch.Tensor:
        """The tensor in main memory that is a weight of such a module."""
        whole = self._away[id(ref.module())].get(ref.name)
        if whole is None:
            raise WeightsElsewhere(NOT_PAGED(weight=ref))
        return whole if ref.part is None else ref.part.at(whole, ref)

    def _hold(self, module: torch.nn.Module, again: bool = False) -> bytes | None:
        signature = self._vbar.fault(*module._v[1:])  # type: ignore[index]
        if signature is not None and not again:
            self._held.append(module)
        return _bytes(signature)


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

    Raises:
        WeightsElsewhere: in the range it is of another type.
    """
    tensor = Plain().laid((ref,))
    wanted = getattr(ref.module(), f"{ref.name}_comfy_model_dtype", None)
    if ref.part is None and wanted is not None and tensor.dtype != wanted:
        raise WeightsElsewhere(ANOTHER_DTYPE(weight=ref, dtype=tensor.dtype, wanted=wanted))
    return tensor


def _brought_from(module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Where a module's weights are, by name."""
    weights = {name: tensor for name in _ORDER if (tensor := module._parameters.get(name)) is not None}
    if any(tensor.is_meta for tensor in weights.values()):
        raise WeightsElsewhere(IN_A_FILE(kind=type(module).__name__))
    pinned = getattr(sys.modules.get("comfy.pinned_memory"), "get_pin", None)
    gathered = getattr(sys.modules.get("comfy.memory_management"), "interpret_gathered_like", None)
    if pinned is None or gathered is None or not hasattr(module, "_pin_state"):
        return weights
    pins = (pinned(module, subset) for subset in _SUBSETS)
    pin = next((pin for pin in pins if pin is not None), None)
    return weights if pin is None else dict(zip(weights, gathered(list(weights.values()), pin), strict=True))


def _pinned(weights: dict[str, torch.Tensor]) -> bool:
    return all(tensor.is_pinned() for tensor in weights.values())


def _pages(vbar: Any) -> list[int] | None:
    """Which pages of the range are resident; None where it doesn't say."""
    return vbar.get_residency() if hasattr(vbar, "get_residency") else None


def _is_there(module: torch.nn.Module, vbar: Any, pages: list[int] | None) -> bool:
    if pages is None:
        return True
    return all(pages[page] & 1 for page in _pages_of(module, vbar))


def _pages_of(module: torch.nn.Module, vbar: Any) -> range:
    start = module._v[1] - vbar.base_addr  # type: ignore[index]
    return range(start // PAGE_BYTES, (start + module._v[2] - 1) // PAGE_BYTES + 1)  # type: ignore[index]


def _bytes(signature: Any) -> bytes | None:
    return None if signature is None else bytes(signature)
