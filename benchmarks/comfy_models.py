"""Checkpoints, prompts, LoRAs and ControlNets with random weights, as a real ComfyUI takes them.

Needs ``comfy`` to be importable.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .random_weights import random_weights

SHARED = {
    "image_size": 32,
    "in_channels": 4,
    "out_channels": 4,
    "model_channels": 320,
    "use_spatial_transformer": True,
    "legacy": False,
}
UNETS: dict[str, dict[str, Any]] = {
    "SD1.5": {
        "num_res_blocks": [2] * 4,
        "channel_mult": [1, 2, 4, 4],
        "transformer_depth": [1] * 6 + [0] * 2,
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1] * 9 + [0] * 3,
        "use_linear_in_transformer": False,
        "context_dim": 768,
        "num_heads": 8,
    },
    "SDXL": {
        "num_res_blocks": [2] * 3,
        "channel_mult": [1, 2, 4],
        "transformer_depth": [0, 0, 2, 2, 10, 10],
        "transformer_depth_middle": 10,
        "transformer_depth_output": [0, 0, 0, 2, 2, 2, 10, 10, 10],
        "use_linear_in_transformer": True,
        "context_dim": 2048,
        "num_head_channels": 64,
        "num_classes": "sequential",
        "adm_in_channels": 2816,
    },
    "tiny": {  # what ComfyUI still takes for SD1.5: the channels and the context's width must stay
        "num_res_blocks": [1, 1],
        "channel_mult": [1, 2],
        "transformer_depth": [1, 1],
        "transformer_depth_middle": 1,
        "transformer_depth_output": [1, 1, 1, 1],
        "use_linear_in_transformer": False,
        "context_dim": 768,
        "num_heads": 8,
    },
}
_LORA_LAYERS = (
    "to_q",
    "to_k",
    "to_v",
    "to_out.0",
    "ff.net.0.proj",
    "ff.net.2",
    "proj_in",
    "in_layers.2",
    "emb_layers.1",
)


def shapes_of(make: Callable[[], torch.nn.Module]) -> dict[str, torch.Tensor]:
    """The state dict of what ``make`` builds on the meta device.

    Under dynamic VRAM layers have no weights before their checkpoint comes.
    """
    with _as_without_dynamic_vram():
        return make().state_dict()


@contextmanager
def _as_without_dynamic_vram() -> Iterator[None]:
    import comfy

    management = getattr(comfy, "memory_management", None)
    enabled = getattr(management, "aimdo_enabled", False)
    if not enabled:
        yield
        return
    management.aimdo_enabled = False  # type: ignore[union-attr]
    try:
        yield
    finally:
        management.aimdo_enabled = enabled  # type: ignore[union-attr]


def _unet(name: str) -> dict[str, torch.Tensor]:
    """Its state dict on the meta device."""
    import comfy.ops
    from comfy.ldm.modules.diffusionmodules.openaimodel import UNetModel

    return shapes_of(
        lambda: UNetModel(**SHARED, **UNETS[name], device="meta", operations=comfy.ops.disable_weight_init)
    )


def checkpoint(name: str, device: torch.device) -> dict[str, torch.Tensor]:
    """A state dict that ComfyUI recognises, drawn on ``device``."""
    return {f"model.diffusion_model.{key}": value for key, value in random_weights(_unet(name), device, 0).items()}


def conditioning(name: str, seed: int, tokens: int = 77, **options: Any) -> list[Any]:
    """A prompt. ``options``: what nodes may put on it, such as a ControlNet."""
    generator = torch.Generator().manual_seed(seed)
    context = torch.randn(1, tokens, UNETS[name]["context_dim"], generator=generator)
    extra = {"pooled_output": torch.randn(1, 1280, generator=generator)} if name == "SDXL" else {}
    return [[context, {**extra, **options}]]


def lora(name: str, seed: int, device: torch.device, rank: int = 8) -> dict[str, torch.Tensor]:
    """A LoRA on attention, feed-forward and convolutions: at strength 1 it adds a third of a weight's norm."""
    generator = torch.Generator(device).manual_seed(seed)
    found: dict[str, torch.Tensor] = {}
    for key, weight in _unet(name).items():
        layer = key.removesuffix(".weight")
        if key != layer and layer.endswith(_LORA_LAYERS):
            rows, columns = weight.shape[0], math.prod(weight.shape[1:])
            up = torch.randn(rows, rank, device=device, generator=generator) * (0.3 / (rank * columns) ** 0.5)
            down = torch.randn(rank, columns, device=device, generator=generator)
            if weight.dim() == 4:
                up, down = up[:, :, None, None], down.reshape(rank, *weight.shape[1:])
            place = "lora_unet_" + layer.replace(".", "_")
            found |= {f"{place}.lora_up.weight": up.half().cpu(), f"{place}.lora_down.weight": down.half().cpu()}
            found[f"{place}.alpha"] = torch.tensor(float(rank))
    return found


def control_net(name: str, device: torch.device) -> Any:
    """A ControlNet for the UNet, as Load ControlNet gives it. Its zero convolutions aren't zero."""
    import comfy.cldm.cldm
    import comfy.controlnet
    import comfy.ops

    sizes = {
        key: value
        for key, value in {**SHARED, **UNETS[name]}.items()
        if key not in ("out_channels", "transformer_depth_output")
    }
    shapes = shapes_of(
        lambda: comfy.cldm.cldm.ControlNet(
            **sizes, hint_channels=3, device="meta", operations=comfy.ops.disable_weight_init
        )
    )
    return comfy.controlnet.load_controlnet_state_dict(random_weights(shapes, device, 7))
