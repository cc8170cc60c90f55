"""How ComfyUI keeps a model of which a part is in main memory: ``--lowvram``, ``--novram``, and whatever didn't fit.

A layer whose weights are there brings them at each call, casts them, and adds what LoRAs the model has: they are
functions of the layer's then (``weight_function``), by ComfyUI's own class. Functions of other classes are another
node's.
"""

from __future__ import annotations

import bisect
import itertools
import logging
import sys
import weakref
from collections.abc import Callable, Hashable, Sequence
from typing import Any

import torch

from ...reporting.reasons.memory import COMPUTED
from ...weights import Offload, WeightRef, WeightsElsewhere
from ...weights.offload import Computed
from ...weights.tensor_map import TensorMap
from .held_patches import HeldPatches, watch_added

log = logging.getLogger("fast_compile")
FUNCTIONS = {"weight": "weight_function", "bias": "bias_function"}
#: What of a layer says no more than where its weights are: :class:`ComfyOffload` asks for it at each call.
LEFT_TO_HOST = frozenset(
    {"comfy_cast_weights", "prev_comfy_cast_weights", "comfy_patched_weights", *FUNCTIONS.values()}
)
#: Where a layer or a block keeps, under dynamic VRAM, what it was brought: ComfyUI sets it while a call runs, a model's
#: first or the first behind a change of LoRAs above all.
KEPT_BY_HOST = frozenset(
    {"_v_signature", "_v_weight", "_v_bias", "_v_block_faulted", "_prefetch", "_pins", "_comfy_graph"}
)
_NONE: list[Any] = []


def is_of_host(function: Any) -> bool:
    """Whether a function of a layer's weights is ComfyUI's own,
    for the LoRAs of a model that is partly in main memory.
    """
    kind = getattr(sys.modules.get("comfy.model_patcher"), "LowVramPatch", None)
    return kind is not None and type(function) is kind


def others_function(module: Any) -> bool:
    """Whether another node computes a layer's weights at each call."""
    return any(
        not is_of_host(function) for name in FUNCTIONS.values() for function in getattr(module, name, None) or ()
    )


class ComfyOffload(Offload):
    """The weights of one module that ComfyUI loads.

    Args:
        owner: what a patcher calls its model; the compiled module is that or below it.
    """

    def __init__(self, owner: torch.nn.Module) -> None:
        self._owner = weakref.ref(owner)
        self._patches = HeldPatches()
        self._asked = TensorMap[bool]()  # weights that were to be pinned

    def period(self) -> Hashable:
        """A sampling, unless a part of the prompt has patches of its own: those are written to the weights between its
        steps.
        """
        patcher = getattr(self._owner(), "current_patcher", None)
        if getattr(patcher, "hook_patches", None) or getattr(patcher, "current_hooks", None):
            return None
        return super().period()

    def functions(self, ref: WeightRef) -> tuple[Computed, ...]:
        """See :class:`Offload`."""
        found = tuple(getattr(ref.module(), FUNCTIONS.get(ref.name, ""), None) or ())
        if found and (ref.part is not None or not all(map(is_of_host, found))):
            raise WeightsElsewhere(COMPUTED(kind=type(ref.module()).__name__))
        return found

    def watch(self, refs: Sequence[WeightRef]) -> Callable[[], bool]:
        """See :class:`Offload`."""
        # the root's dictionary leads to the compiled state: a cycle
        below = [ref for ref in refs if ref.path and ref.name in FUNCTIONS]
        tables, names = [ref.module().__dict__ for ref in below], [FUNCTIONS[ref.name] for ref in below]
        now = lambda: list(map(dict.get, tables, names, itertools.repeat(_NONE)))  # noqa: E731
        before = [list(functions) for functions in now()]
        added = watch_added([*itertools.chain(*before)])
        return lambda: now() == before and added()

    def held(self, functions: tuple[Computed, ...], device: torch.device) -> tuple[Computed, ...]:
        """See :class:`Offload`."""
        return self._patches.held(functions, device)

    def watch_pins(self, tensors: Sequence[torch.Tensor]) -> Callable[[], bool]:
        """ComfyUI has a table of what it has pinned: bytes by address. What isn't in there was pinned by PyTorch."""

        def now() -> dict[int, int]:
            return getattr(sys.modules.get("comfy.model_management"), "PINNED_MEMORY", {})

        pinned = dict(now())
        starts, ours = sorted(pinned), set[int]()
        for address in (tensor.data_ptr() for tensor in tensors):
            place = bisect.bisect_right(starts, address) - 1  # a part of a weight begins within what was pinned
            if place >= 0 and address < starts[place] + pinned[starts[place]]:
                ours.add(starts[place])
        return lambda: ours <= now().keys()

    def pin(self, ref: WeightRef, tensor: torch.Tensor) -> bool:
        """Ask the patcher, once for each tensor: it knows how much may be pinned, and gives it back when it unloads the
        model.
        """
        if tensor.device.type != "cpu" or tensor in self._asked or not torch.cuda.is_available():
            return False
        if tensor.is_pinned():
            return True
        self._asked[tensor] = True
        owner: Any = self._owner()
        ask = getattr(getattr(owner, "current_patcher", None), "pin_weight_to_device", None)
        if ask is None or ref.part is not None or not hasattr(owner, "diffusion_model"):
            return False
        try:
            ask(f"diffusion_model.{ref}")
        except Exception:  # it is brought all the same, only slower
            log.debug("Fast Compile: ComfyUI couldn't pin %s", ref, exc_info=True)
        return tensor.is_pinned()
