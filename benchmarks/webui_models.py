"""Checkpoints with random weights as Forge takes them, text encoders and VAE included.

Needs Forge's folder on ``sys.path``.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .clip_shapes import clip_g, clip_l
from .comfy_models import UNETS
from .random_weights import random_weights

_IMAGES = {"in_channels": 4, "out_channels": 4, "model_channels": 320, "use_spatial_transformer": True}
_VAE = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
}
_TEXT_ENCODERS = {
    "SD1.5": [(clip_l, "cond_stage_model")],
    "SDXL": [(clip_l, "conditioner.embedders.0"), (clip_g, "conditioner.embedders.1")],
}
_TEXT_ENCODERS["tiny"] = _TEXT_ENCODERS["SD1.5"]


def _shapes(name: str) -> dict[str, torch.Tensor]:
    from backend.nn.unet import IntegratedUNet2DConditionModel
    from backend.nn.vae import IntegratedAutoencoderKL

    with torch.device("meta"):
        parts: dict[str, Any] = {
            "model.diffusion_model": IntegratedUNet2DConditionModel(**_IMAGES, **UNETS[name]),
            "first_stage_model": IntegratedAutoencoderKL(**_VAE),
        }
        shapes = {
            f"{part}.{key}": value for part, module in parts.items() for key, value in module.state_dict().items()
        }
        for make, place in _TEXT_ENCODERS[name]:
            shapes |= {key: torch.empty(shape) for key, shape in make(place)}
    return shapes


def write_checkpoint(name: str, path: Path, device: torch.device) -> None:
    """Write a checkpoint that Forge recognises, drawn on ``device``.

    Args:
        name: of ``SD1.5``, ``SDXL`` and ``tiny``, a SD1.5 of 44 M parameters.
        path: a safetensors file.
        device: where the random numbers are made.
    """
    from safetensors.torch import save_file

    weights = random_weights(_shapes(name), device, 0)
    for key in weights:
        if key.endswith(("final_layer_norm.bias", "ln_final.bias")):
            weights[key] += 0.1  # Forge divides by the mean of what a text encoder gives
    save_file(weights, path)
