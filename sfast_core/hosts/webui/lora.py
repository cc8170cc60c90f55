"""A1111's built-in Lora changes a layer's weight in place inside that layer's forward, the first time after the
prompt's LoRAs changed.

A fused program calls no layer's forward, so its weights must be brought up to date before each call. The Lora extension
compares a layer's names and strengths with those wanted and does nothing where they agree; the same comparison once for
the whole model costs 2 us instead of 1 ms for 700 layers. Where there is no such extension (Forge patches weights when
it loads the model), there is nothing to do.
"""

from __future__ import annotations

import sys
from typing import Any

import torch

from ...reporting.reasons.hosts import LORA_FUNCTIONAL

#: The classes whose forward the Lora extension has replaced: on others its function doesn't work.
_PATCHED = (torch.nn.Linear, torch.nn.Conv2d, torch.nn.GroupNorm, torch.nn.LayerNorm, torch.nn.MultiheadAttention)


class LazyLoras:
    """Applies the LoRAs that the prompt names to one model's weights, when they changed since :meth:`forget`."""

    def __init__(self) -> None:
        self._applied: tuple[Any, ...] | None = None

    def forget(self) -> None:
        """The weights may have changed otherwise: look at each layer the next time."""
        self._applied = None

    def why_not(self) -> str | None:
        """Why a call must run as it was, or None: with the setting ``lora_functional`` layers compute LoRAs beside
        their weights.
        """
        networks = _networks()
        if networks is None or not networks.loaded_networks or not _functional():
            return None
        self.forget()  # the layers take LoRAs out of their weights in that call
        return LORA_FUNCTIONAL()

    def apply(self, model: torch.nn.Module) -> bool:
        """Bring the weights of ``model`` up to date, as its layers' own forwards would.

        Returns whether they may have been written to.
        """
        networks = _networks()
        if networks is None or _functional():
            return False
        wanted = tuple(
            (net.name, net.te_multiplier, net.unet_multiplier, net.dyn_dim) for net in networks.loaded_networks
        )
        if wanted == self._applied:
            return False
        self.forget()
        inner = {id(module.out_proj) for module in model.modules() if isinstance(module, torch.nn.MultiheadAttention)}
        for module in model.modules():
            if isinstance(module, _PATCHED) and id(module) not in inner:
                networks.network_apply_weights(module)
        self._applied = wanted
        return True


def _networks() -> Any:
    """The Lora extension's ``networks`` module, by way of what it registered: other extensions may have a module of
    that name.
    """
    registry = getattr(sys.modules.get("modules.extra_networks"), "extra_network_registry", {})
    owner = sys.modules.get(type(registry.get("lora")).__module__)
    networks = getattr(owner, "networks", None)
    return networks if hasattr(networks, "network_apply_weights") and hasattr(networks, "loaded_networks") else None


def _functional() -> bool:
    return bool(getattr(getattr(sys.modules.get("modules.shared"), "opts", None), "lora_functional", False))
