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


#: Those in use.
HYPERNETWORKS: list[Any] = []


class Attention(torch.nn.Module):
    """With A1111's way of asking for hypernetworks."""

    def __init__(self) -> None:
        super().__init__()
        self.to_q, self.to_k, self.to_out = torch.nn.Linear(8, 8), torch.nn.Linear(8, 8), torch.nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Of a sequence with itself."""
        context = x
        for network in HYPERNETWORKS:
            context = network.layers[context.shape[2]][0](context)
        q, k = self.to_q(x), self.to_k(context)
        return self.to_out(torch.nn.functional.scaled_dot_product_attention(q, k, context))


class Block(torch.nn.Module):
    """A convolution and an attention, with Forge's patches."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution, self.norm, self.attention = (
            torch.nn.Conv2d(8, 8, 3, padding=1),
            torch.nn.GroupNorm(2, 8),
            Attention(),
        )

    def forward(self, h: torch.Tensor, transformer_options: Any = None) -> torch.Tensor:
        """[N, 8, H, W] likewise."""
        options = transformer_options or {}
        h = h + torch.nn.functional.silu(self.norm(self.convolution(h)))
        tokens = h.flatten(2).transpose(1, 2)
        replace = options.get("patches_replace", {}).get("attn1", {})
        if options.get("block") in replace:
            tokens = tokens + replace[options["block"]](tokens, tokens, tokens, dict(options))
        else:
            tokens = tokens + self.attention(tokens)
        return tokens.transpose(1, 2).reshape(h.shape)


class Net(Unet):
    """As A1111's and Forge's: blocks in a list, between which others' functions may run."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range(3))

    def forward(
        self,
        x: torch.Tensor,
        timesteps: torch.Tensor,
        context: torch.Tensor,
        transformer_options: Any = None,
        **kwargs: Any,
    ) -> torch.Tensor:
        """The predicted noise."""
        options = transformer_options if transformer_options is not None else {}
        h = self.convolution(x) + self.context(context).mean(1)[:, :, None, None] + timesteps[:, None, None, None]
        for index, block in enumerate(self.blocks):
            options["block"] = ("input", index)
            for modifier in options.get("block_modifiers", []):
                h = modifier(h, "before", options)
            h = block(h, options)
            for patch in options.get("patches", {}).get("output_block_patch", []):
                h, _ = patch(h, h, options)
        if "group_norm_wrapper" in options:
            h = options["group_norm_wrapper"](self.norm, h, options)
        return self.out(h)


class Half(torch.nn.Module):
    """A VAE's decoder or encoder, which notes down what it was given, as A1111's does."""

    def __init__(self) -> None:
        super().__init__()
        self.convolution = torch.nn.Conv2d(4, 4, 3, padding=1)
        self.norm = torch.nn.GroupNorm(2, 4)

    def forward(self, z: torch.Tensor) -> torch.Tensor:
        """A picture."""
        self.last_z_shape = z.shape
        return torch.nn.functional.silu(self.norm(self.convolution(z)))


class Vae(torch.nn.Module):
    """Two halves."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = Half(), Half()

    def decode(self, z: torch.Tensor) -> torch.Tensor:
        """Not a forward."""
        return self.decoder(z) + 1


class Layers(torch.nn.Module):
    """A text model's encoder of transformers', whose results are objects of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1, self.fc2 = torch.nn.Linear(6, 24), torch.nn.Linear(24, 6)

    def forward(self, inputs_embeds: torch.Tensor, output_hidden_states: bool = False) -> Any:
        """As ``CLIPEncoder`` returns it."""
        from transformers.modeling_outputs import BaseModelOutput

        last = inputs_embeds + self.fc2(torch.nn.functional.gelu(self.fc1(inputs_embeds)))
        return BaseModelOutput(
            last_hidden_state=last, hidden_states=(inputs_embeds, last) if output_hidden_states else None
        )


class Clip(torch.nn.Module):
    """An embedder around a text model of transformers'."""

    def __init__(self) -> None:
        super().__init__()
        self.transformer = torch.nn.Module()
        self.transformer.text_model = torch.nn.Module()
        self.transformer.text_model.encoder = Layers()

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """The last but one layer's states."""
        outputs = self.transformer.text_model.encoder(inputs_embeds=x, output_hidden_states=True)
        assert outputs.hidden_states[-1] is not None and outputs.attentions is None
        result: torch.Tensor = outputs.last_hidden_state
        return result


class OpenClip(torch.nn.Module):
    """An embedder around a text model of open_clip's: a method runs its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.model = torch.nn.MultiheadAttention(6, 2)

    def text_transformer_forward(
        self, x: torch.Tensor, attn_mask: torch.Tensor | None = None
    ) -> dict[str, torch.Tensor]:
        """The last and the last but one layer's states."""
        return {"penultimate": x, "last": x + self.model(x, x, x, need_weights=False, attn_mask=attn_mask)[0]}

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """The last layer's."""
        return self.text_transformer_forward(x, attn_mask=torch.zeros(len(x), len(x)))["last"]


class TextEncoders(torch.nn.Module):
    """SDXL's two, as A1111 wraps them."""

    def __init__(self) -> None:
        super().__init__()
        self.embedders = torch.nn.ModuleList([torch.nn.Module(), torch.nn.Module()])
        for embedder, wrapped in zip(self.embedders, (Clip(), OpenClip()), strict=True):
            embedder.wrapped = wrapped

    def encode(self, x: torch.Tensor) -> torch.Tensor:
        """Of both, one beside the other."""
        return torch.cat([embedder.wrapped.encode(x) for embedder in self.embedders], -1)  # type: ignore[operator, union-attr]


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
            return self.model.diffusion_model(
                x, timestep, context=c["c_crossattn"], transformer_options=c["transformer_options"]
            )

        timestep = torch.ones(len(x))
        options = {**self.model_options["transformer_options"], "cond_or_uncond": [0], "sigmas": timestep}
        c = {"c_crossattn": context, "transformer_options": options}
        wrapper = self.model_options.get("model_function_wrapper")
        return (
            wrapper(apply_model, {"input": x, "timestep": timestep, "c": c})
            if wrapper
            else apply_model(x, timestep, **c)
        )


class SdModel(SimpleNamespace):
    """What a webui calls its model: one of which weak references can be had."""


def a1111_model(unet: torch.nn.Module) -> Any:
    """A ``sd_model`` with this UNet."""
    parts = {"first_stage_model": Vae().eval(), "cond_stage_model": TextEncoders().eval()}
    return SdModel(model=SimpleNamespace(diffusion_model=unet), is_sd1=True, **parts)


def forge_model(unet: torch.nn.Module) -> Any:
    """The same of Forge."""
    vae, clip = SimpleNamespace(first_stage_model=Vae().eval()), SimpleNamespace(cond_stage_model=TextEncoders().eval())
    return SdModel(forge_objects=SimpleNamespace(unet=Patcher(unet), vae=vae, clip=clip), is_sdxl=True)


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
        wanted = tuple(
            (net.name, net.te_multiplier, net.unet_multiplier, net.dyn_dim) for net in networks.loaded_networks
        )
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


@pytest.fixture(params=[a1111_model, forge_model], ids=["a1111", "forge"])
def model(request: pytest.FixtureRequest, webui: Webui) -> Any:
    """A model of either kind."""
    torch.manual_seed(0)
    return request.param(Unet().eval())
