"""As much of a webui as the accelerator looks at, under the names in ``sys.modules`` that it looks for."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch


class Unet(torch.nn.Module):
    """Convolution, norm and a linear layer that reads the context."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 8, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 8)
        self.context = torch.nn.Linear(6, 8)
        self.out = torch.nn.Conv2d(8, 4, 1)

    def forward(self, x: torch.Tensor, timesteps: torch.Tensor, context: torch.Tensor, **kwargs: Any) -> torch.Tensor:
        """The predicted noise."""
        kept = torch.nn.functional.silu(self.norm(self.convolution(x)))
        return self.out(kept + self.context(context).mean(1)[:, :, None, None] + timesteps[:, None, None, None])


class Patcher:
    """Forge's model patcher, as far as a function wrapper needs one."""

    def __init__(self, unet: torch.nn.Module) -> None:
        self.model = SimpleNamespace(diffusion_model=unet)
        self.model_options: dict[str, Any] = {"transformer_options": {}}
        self.online = False

    def clone(self) -> Patcher:
        """Shares the model; copies the options, as deeply as Forge does."""
        import copy

        other = Patcher(self.model.diffusion_model)
        other.model_options, other.online = copy.deepcopy(self.model_options), self.online
        return other

    def set_model_unet_function_wrapper(self, wrapper: Any) -> None:
        """One slot."""
        self.model_options["model_function_wrapper"] = wrapper

    def has_online_lora(self) -> bool:
        """Whether layers merge LoRAs at each call."""
        return self.online

    def sample(self, x: torch.Tensor, context: torch.Tensor) -> torch.Tensor:
        """One step, as ``calc_cond_uncond_batch`` makes it."""

        def apply_model(x: torch.Tensor, timestep: torch.Tensor, **c: Any) -> torch.Tensor:
            return self.model.diffusion_model(x, timestep, context=c["c_crossattn"], transformer_options=c["transformer_options"])

        timestep = torch.ones(len(x))
        options = {**self.model_options["transformer_options"], "cond_or_uncond": [0], "sigmas": timestep}
        c = {"c_crossattn": context, "transformer_options": options}
        wrapper = self.model_options.get("model_function_wrapper")
        return wrapper(apply_model, {"input": x, "timestep": timestep, "c": c}) if wrapper else apply_model(x, timestep, **c)


def a1111_model(unet: torch.nn.Module) -> Any:
    """A ``sd_model`` with this UNet."""
    return SimpleNamespace(model=SimpleNamespace(diffusion_model=unet), is_sd1=True)


def forge_model(unet: torch.nn.Module) -> Any:
    """The same of Forge."""
    return SimpleNamespace(forge_objects=SimpleNamespace(unet=Patcher(unet)), is_sdxl=True)


@dataclass
class Network:
    """A loaded LoRA."""

    name: str
    te_multiplier: float = 1.0
    unet_multiplier: float = 1.0
    dyn_dim: int | None = None


@dataclass
class Webui:
    """The modules that were put into ``sys.modules``."""

    shared: Any
    sd_unet: Any
    networks: Any
    applied: list[torch.nn.Module] = field(default_factory=list)


@pytest.fixture
def webui(monkeypatch: pytest.MonkeyPatch) -> Webui:
    """A webui with the built-in Lora extension, whose LoRAs add their strength to every weight."""

    def module(name: str, **attributes: Any) -> Any:
        made: Any = ModuleType(name)
        vars(made).update(attributes)
        monkeypatch.setitem(sys.modules, name, made)
        return made

    networks: Any = ModuleType("networks")

    class ExtraNetworkLora:
        """What the extension registers."""

    ExtraNetworkLora.__module__ = "fake_extra_networks_lora"
    module("fake_extra_networks_lora", networks=networks)
    module("modules.extra_networks", extra_network_registry={"lora": ExtraNetworkLora()})
    opts = SimpleNamespace(lora_functional=False, upcast_attn=False)
    shared = module("modules.shared", opts=opts, cmd_opts=SimpleNamespace(lowvram=False), loaded_hypernetworks=[])
    made = Webui(shared, module("modules.sd_unet", current_unet=None), networks)

    def apply(layer: Any) -> None:
        wanted = tuple((net.name, net.te_multiplier, net.unet_multiplier, net.dyn_dim) for net in networks.loaded_networks)
        if getattr(layer, "network_current_names", ()) == wanted:
            return
        made.applied.append(layer)
        backup = getattr(layer, "network_weights_backup", None)
        if backup is None:
            backup = layer.network_weights_backup = layer.weight.detach().clone()
        with torch.no_grad():
            layer.weight.copy_(backup + sum(net.unet_multiplier for net in networks.loaded_networks))
        layer.network_current_names = wanted

    networks.network_apply_weights, networks.loaded_networks = apply, []
    return made
