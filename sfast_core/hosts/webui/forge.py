"""Forge: the compiled forward is under the UNet only while a patcher's function wrapper runs.

Forge makes a new patcher for each sampling and forgets it afterwards, also after an exception: a wrapper on a clone
can't be left behind. There is one place for a wrapper, so ours calls the one that was there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from ...reporting.reasons.hosts import ONLINE_LORA
from ..hook import Call, Hook

_SLOT = "model_function_wrapper"


class FunctionWrapper:
    """What Forge calls in place of the model: ``wrapper(apply_model, {"input", "timestep", "c",
    "cond_or_uncond"})``.
    """

    def __init__(self, unet: torch.nn.Module, call: Call, inner: Callable[..., Any] | None) -> None:
        self._unet = unet
        self._call = call
        self.inner = inner

    def __call__(self, apply_model: Callable[..., Any], parameters: dict[str, Any]) -> Any:
        hook = Hook(self._unet, self._call).put()
        try:
            if self.inner is not None:
                return self.inner(apply_model, parameters)
            return apply_model(parameters["input"], parameters["timestep"], **parameters["c"])
        finally:
            hook.remove()

    def __deepcopy__(self, memo: Any) -> FunctionWrapper:
        """Itself: a patcher's options are copied with every clone."""
        return self


def attach(sd_model: Any, call: Call) -> None:
    """Give ``sd_model`` a clone of its patcher with our wrapper.

    Twice is the same as once: Forge asks twice before a hires pass.
    """
    patcher = sd_model.forge_objects.unet.clone()
    inner = patcher.model_options.get(_SLOT)
    if isinstance(inner, FunctionWrapper):
        inner = inner.inner
    patcher.set_model_unet_function_wrapper(FunctionWrapper(patcher.model.diffusion_model, call, inner))
    sd_model.forge_objects.unet = patcher


def wrapper_of(sd_model: Any) -> Any:
    """The function wrapper that the coming step will call, or None."""
    return sd_model.forge_objects.unet.model_options.get(_SLOT)


def obstacle(sd_model: Any) -> str | None:
    """Why Forge's own ways of running the model keep it from being accelerated, or None."""
    if getattr(sd_model.forge_objects.unet, "has_online_lora", bool)():
        return ONLINE_LORA()
    return None
