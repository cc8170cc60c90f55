"""Lets a test look into the running webui and get in its way: another extension, as far as Fast Compile can tell."""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable
from typing import Any

from modules import script_callbacks, sd_samplers_common, shared

import install  # noqa: F401  the extension's own, which now has the name
import nodes

assert nodes.OWNER == "probe"
# A1111: the checkpoints' config, one for both, so that they are loaded into the same modules
if "modules.sd_models_config" in sys.modules:
    sys.modules["modules.sd_models_config"].config_default = os.environ["PROBE_CONFIG"]  # type: ignore[attr-defined]


def _unet() -> Any:
    model = shared.sd_model
    forge = getattr(model, "forge_objects", None)
    return forge.unet.model.diffusion_model if forge is not None else model.model.diffusion_model


def look() -> dict[str, Any]:
    """The UNet as it is between two pictures."""
    return _state(_unet())


def parts() -> list[dict[str, Any]]:
    """The halves of the VAE and the layers of the text encoders, likewise."""
    model = shared.sd_model
    forge = getattr(model, "forge_objects", None)
    vae = forge.vae.first_stage_model if forge is not None else model.first_stage_model
    text = forge.clip.cond_stage_model if forge is not None else model.cond_stage_model
    layers = [module for module in text.modules() if type(module).__name__ == "CLIPEncoder"]
    return [_state(part) for part in (vae.encoder, vae.decoder, *layers)]


def _state(unet: Any) -> dict[str, Any]:
    weights = list(unet.parameters())
    return {
        "own_forward": "forward" in vars(unet),
        "strided": sum(not weight.is_contiguous() for weight in weights),
        "storages": len({weight.untyped_storage().data_ptr() for weight in weights}) - len(weights),
        "hooks": len(unet._forward_hooks) + len(unet._forward_pre_hooks),
    }


def fail() -> dict[str, Any]:
    """Let the next sampling fail after its first step."""
    store = sd_samplers_common.store_latent

    def fail_once(*args: Any, **kwargs: Any) -> None:
        sd_samplers_common.store_latent = store
        raise ValueError("the probe's own error")

    sd_samplers_common.store_latent = fail_once
    return {}


def wrap() -> dict[str, Any]:
    """Replace the UNet's forward on the instance, as ControlNet does."""
    unet = _unet()
    original = unet.forward

    @functools.wraps(original)
    def halved(*args: Any, **kwargs: Any) -> Any:
        return original(*args, **kwargs) * 0.5

    unet.forward = halved
    return {}


def unwrap() -> dict[str, Any]:
    """Put it back as other extensions do: the class's own, on the instance."""
    unet = _unet()
    unet.forward = type(unet).forward.__get__(unet)
    return {}


_put: list[Callable[[], Any]] = []


def put(kind: str) -> dict[str, Any]:
    """Work inside the UNet as other extensions do, until :func:`take`."""
    block = _unet().middle_block
    if kind == "hook":
        # reForge calls what is in the block, and not the block
        _put.append(block[0].register_forward_hook(lambda module, args, result: result * 1.3).remove)
        return {}
    where = block[1].transformer_blocks[0].attn1 if kind == "attention" else _unet()
    original, count = where.forward, [0]

    def counting(*args: Any, **kwargs: Any) -> Any:
        count[0] += 1
        return original(*args, **kwargs) * (1 + 2.0 * count[0])

    def reading(x: Any, *args: Any, **kwargs: Any) -> Any:
        return original(x, *args, **kwargs) * (0.5 if float(x.abs().mean()) > 0 else 1.0)

    where.forward = counting if kind == "attention" else reading
    _put.append(lambda: vars(where).pop("forward"))
    return {}


def take() -> dict[str, Any]:
    """Put all of it back."""
    while _put:
        _put.pop()()
    return {}


def channels() -> dict[str, Any]:
    """Let Forge's FreeU take the tiny UNet's blocks for those that it changes: those of twice the model's channels."""
    unet = _unet()
    unet.register_to_config(model_channels=unet.model_channels // 2)
    return {}


def reload_ui() -> dict[str, Any]:
    """What the button "Reload UI" does."""
    shared.state.request_restart()
    return {}


def add_routes(_: Any, app: Any) -> None:
    """The above as routes."""
    for function in (look, parts, fail, wrap, unwrap, put, take, channels, reload_ui):
        app.add_api_route(f"/probe/{function.__name__}", function, methods=["POST"])


script_callbacks.on_app_started(add_routes)
