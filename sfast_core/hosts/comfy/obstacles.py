"""What keeps a ComfyUI model from being accelerated for now: other nodes that reach into it, and ways of loading it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from ...reporting.reasons.calls import COMPILED_TOO
from ...reporting.reasons.hosts import NO_MODULE, NODE_REPLACES, NODE_WRAPS
from ...reporting.reasons.memory import COMPUTED
from ..blocks import holds_blocks_of_others
from ..hook import maker_of
from .offload import others_function

_MODEL = "diffusion_model"
_LOADED = ("current_weight_patches_uuid", "model_loaded_weight_memory", "model_lowvram", "lowvram_patch_counter")
_SAMPLING = "sample_sigmas"  #: among the options, one tensor for all calls of a sampling


class Obstacles:
    """Says why one model runs as it was, or None.

    Asked at every call; what needs a walk over the model, once a sampling and after a load.
    """

    def __init__(self) -> None:
        self._loaded: tuple[Any, ...] | None = None
        self._computed: str | None = None

    def reason(self, base_model: Any, model: torch.nn.Module, attribute: str, options: Mapping[str, Any]) -> str | None:
        """Why this call can't be accelerated, or None.

        Args:
            base_model: ComfyUI's BaseModel.
            model: its diffusion model.
            attribute: the forward that is to be replaced, ``_forward`` or ``forward``.
            options: the call's transformer options.
        """
        return (
            _replaced(model, attribute)
            or _blocks_replaced(model)
            or _wrapped(model, attribute, options)
            or self._weights(base_model, model, options)
        )

    def _weights(self, base_model: Any, model: torch.nn.Module, options: Mapping[str, Any]) -> str | None:
        """Weights that layers compute at each call by another node's functions.

        ComfyUI's own, of LoRAs on a partly loaded model, are computed here too.
        """
        loaded = (id(options.get(_SAMPLING)), *(getattr(base_model, name, None) for name in _LOADED))
        if loaded != self._loaded:
            owner = next(filter(others_function, model.modules()), None)
            self._computed = COMPUTED(kind=type(owner).__name__) if owner is not None else None
            self._loaded = loaded
        return self._computed


def why_left_alone(model: Any, options: Mapping[str, Any]) -> str | None:
    """Why nothing of ours may be put under a call at all, or None: its model is no module, or torch.compile's."""
    if not isinstance(model, torch.nn.Module):
        return NO_MODULE(kind=type(model).__name__)
    wrappers = (options.get("wrappers") or {}).get("apply_model") or {}
    if hasattr(model, "_orig_mod") or "torch.compile" in wrappers:
        return COMPILED_TOO()
    return None


def _replaced(model: torch.nn.Module, attribute: str) -> str | None:
    """A method replaced on the instance, other than through the patcher (some nodes do so for the length of a call)."""
    for name, value in model.__dict__.items():
        if name != attribute and callable(value) and callable(getattr(type(model), name, None)):
            return NODE_REPLACES(attribute=name, by=maker_of(value))
    return None


def _blocks_replaced(model: torch.nn.Module) -> str | None:
    """Somebody else's module in the place of the model's blocks, which it runs itself, or not (First Block Cache)."""
    for name, child in model.named_children():
        if (
            isinstance(child, torch.nn.ModuleList)
            and (other := next((block for block in child if holds_blocks_of_others(model, block)), None)) is not None
        ):
            return NODE_REPLACES(attribute=name, by=maker_of(type(other)))
    return None


def _wrapped(model: torch.nn.Module, attribute: str, options: Mapping[str, Any]) -> str | None:
    """Other nodes' wrappers that would run inside the trace, where the model has no inner forward of its own."""
    wrappers = {key: value for key, value in ((options.get("wrappers") or {}).get(_MODEL) or {}).items() if value}
    code = getattr(getattr(type(model), attribute, None), "__code__", None)
    if wrappers and attribute == "forward" and code is not None and "patcher_extension" in code.co_names:
        return NODE_WRAPS(names=", ".join(sorted(map(str, wrappers))))
    return None
