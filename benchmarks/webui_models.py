"""Checkpoints with random weights as Forge takes them, text encoders and VAE included. Needs Forge's folder on ``sys.path``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from .comfy_models import UNETS
from .random_weights import random_weights

_IMAGES = {"in_channels": 4, "out_channels": 4, "model_channels": 320, "use_spatial_transformer": True}
_VAE = {
    "block_out_channels": (128, 256, 512, 512),
    "down_block_types": ("DownEncoderBlock2D",) * 4,
    "layers_per_block": 2,
    "latent_channels": 4,
}
_VOCABULARY, _TOKENS = 49408, 77
Shapes = Iterator[tuple[str, tuple[int, ...]]]


def _affine(name: str, width: int) -> Shapes:
    yield f"{name}.weight", (width,)
    yield f"{name}.bias", (width,)


def _linear(name: str, rows: int, columns: int) -> Shapes:
    yield f"{name}.weight", (rows, columns)
    yield f"{name}.bias", (rows,)


def _clip_l(name: str, width: int = 768, layers: int = 12) -> Shapes:
    """As transformers names it."""
    model = f"{name}.transformer.text_model"
    yield f"{model}.embeddings.token_embedding.weight", (_VOCABULARY, width)
    yield f"{model}.embeddings.position_embedding.weight", (_TOKENS, width)
    for index in range(layers):
        layer = f"{model}.encoder.layers.{index}"
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            yield from _linear(f"{layer}.self_attn.{part}", width, width)
        yield from _linear(f"{layer}.mlp.fc1", 4 * width, width)
        yield from _linear(f"{layer}.mlp.fc2", width, 4 * width)
        yield from _affine(f"{layer}.layer_norm1", width)
        yield from _affine(f"{layer}.layer_norm2", width)
    yield from _affine(f"{model}.final_layer_norm", width)


def _clip_g(name: str, width: int = 1280, layers: int = 32) -> Shapes:
    """As open_clip names it."""
    model = f"{name}.model"
    yield f"{model}.token_embedding.weight", (_VOCABULARY, width)
    yield f"{model}.positional_embedding", (_TOKENS, width)
    yield f"{model}.text_projection", (width, width)
    for index in range(layers):
        layer = f"{model}.transformer.resblocks.{index}"
        yield f"{layer}.attn.in_proj_weight", (3 * width, width)
        yield f"{layer}.attn.in_proj_bias", (3 * width,)
        yield from _linear(f"{layer}.attn.out_proj", width, width)
        yield from _linear(f"{layer}.mlp.c_fc", 4 * width, width)
        yield from _linear(f"{layer}.mlp.c_proj", width, 4 * width)
        yield from _affine(f"{layer}.ln_1", width)
        yield from _affine(f"{layer}.ln_2", width)
    yield from _affine(f"{model}.ln_final", width)


_TEXT_ENCODERS = {
    "SD1.5": [(_clip_l, "cond_stage_model")],
    "SDXL": [(_clip_l, "conditioner.embedders.0"), (_clip_g, "conditioner.embedders.1")],
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
        shapes = {f"{part}.{key}": value for part, module in parts.items() for key, value in module.state_dict().items()}
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
