"""Diffusion transformers as ComfyUI builds them from a quantised checkpoint, with random weights. Needs ``comfy`` to be importable."""

from __future__ import annotations

import functools
import json
from dataclasses import dataclass
from typing import Any

import torch

from .random_weights import random_weights

FORMATS = {"bf16": None, "int8": "int8_tensorwise", "fp8": "float8_e4m3fn"}


@dataclass(frozen=True)
class Family:
    """A family at its true width and length of input, with few of its blocks.

    Attributes:
        config: the name of its class in ``comfy.supported_models``.
        unet: what ComfyUI reads of a checkpoint's shapes.
        latent: the shape of what is sampled.
        context: tokens and width of a prompt; ``pooled``: the width of its pooled output, if it has one.
        cfg: the guidance: at 1 the negative prompt isn't computed.
    """

    config: str
    unet: dict[str, Any]
    latent: tuple[int, ...]
    context: tuple[int, int]
    pooled: int = 0
    cfg: float = 1.0


FAMILIES = {
    "Flux dev, 3 + 6 blocks": Family(
        "Flux",
        {
            **{"image_model": "flux", "in_channels": 16, "out_channels": 16, "vec_in_dim": 768, "context_in_dim": 4096, "hidden_size": 3072},
            **{"mlp_ratio": 4.0, "num_heads": 24, "depth": 3, "depth_single_blocks": 6, "axes_dim": [16, 56, 56], "theta": 10000},
            **{"patch_size": 2, "qkv_bias": True, "guidance_embed": True, "txt_ids_dims": [], "yak_mlp": False, "txt_norm": False},
        },
        (1, 16, 128, 128),
        (512, 4096),
        768,
    ),
    "Z-Image, 4 + 4 blocks": Family(
        "ZImage",
        {
            **{"image_model": "lumina2", "patch_size": 2, "in_channels": 16, "dim": 3840, "cap_feat_dim": 2560, "n_layers": 4, "qk_norm": True},
            **{"n_heads": 30, "n_kv_heads": 30, "axes_dims": [32, 48, 48], "axes_lens": [1536, 512, 512], "rope_theta": 256.0},
            **{"ffn_dim_multiplier": 8 / 3, "z_image_modulation": True, "time_scale": 1000.0, "pad_tokens_multiple": 32, "n_refiner_layers": 2},
        },
        (1, 16, 128, 128),
        (200, 2560),
        cfg=4.0,
    ),
    "Qwen-Image, 6 blocks": Family(
        "QwenImage", {"image_model": "qwen_image", "in_channels": 64, "num_layers": 6}, (1, 16, 1, 166, 166), (100, 3584), cfg=4.0
    ),
    "Wan 2.2 5B, 3 blocks": Family(
        "WAN22_T2V",
        {
            **{"image_model": "wan2.1", "dim": 3072, "in_dim": 48, "out_dim": 48, "num_heads": 24, "ffn_dim": 14336, "num_layers": 3},
            **{"patch_size": (1, 2, 2), "freq_dim": 256, "window_size": (-1, -1), "qk_norm": True, "cross_attn_norm": True, "eps": 1e-6},
            **{"model_type": "t2v"},
        },
        (1, 48, 21, 44, 80),
        (512, 4096),
    ),
}


def weights_of(family: Family, device: torch.device) -> dict[str, torch.Tensor]:
    """A state dict of the diffusion model in bfloat16."""
    shapes = _model(family, {}, device, None).diffusion_model.state_dict()
    return {key: tensor.to(device, torch.bfloat16) for key, tensor in random_weights(shapes, device, 0).items()}


def quantised(weights: dict[str, torch.Tensor], kind: str | None) -> dict[str, torch.Tensor]:
    """The same weights as a checkpoint of this format has them: linear layers of blocks in 8 bits, each with its scale and what says so."""
    if kind is None:
        return weights
    found: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if not _is_quantised(key, tensor):
            found[key] = tensor
            continue
        found.update(_in_8_bits(tensor, kind).state_dict(key))
        found[f"{key.removesuffix('.weight')}.comfy_quant"] = torch.tensor(list(json.dumps({"format": kind}).encode()), dtype=torch.uint8)
    return found


def meant(weights: dict[str, torch.Tensor], kind: str | None) -> dict[str, torch.Tensor]:
    """What a checkpoint of this format means, in float32."""
    return {
        key: (_in_8_bits(tensor, kind).dequantize() if kind is not None and _is_quantised(key, tensor) else tensor).float()
        for key, tensor in weights.items()
    }


def lora(weights: dict[str, torch.Tensor], seed: int, rank: int = 16) -> dict[str, torch.Tensor]:
    """A LoRA on all that :func:`quantised` quantises: at strength 1 it adds a tenth of a weight's norm."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if _is_quantised(key, tensor):
            generator = torch.Generator(tensor.device).manual_seed(seed + len(found))
            random = functools.partial(torch.randn, device=tensor.device, generator=generator)
            (rows, columns), place = tensor.shape, f"diffusion_model.{key.removesuffix('.weight')}"
            found[f"{place}.lora_up.weight"] = random(rows, rank).mul(0.1 / rank**0.5 * float(tensor.float().std())).bfloat16()
            found[f"{place}.lora_down.weight"] = random(rank, columns).bfloat16()
    return found


def _is_quantised(key: str, tensor: torch.Tensor) -> bool:
    layer = key.removesuffix(".weight")
    return layer != key and tensor.dim() == 2 and "." in layer and not any(size % 64 for size in tensor.shape)


def _in_8_bits(tensor: torch.Tensor, kind: str) -> Any:
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    return QuantizedTensor.from_float(tensor, QUANT_ALGOS[kind]["comfy_tensor_layout"], scale="recalculate")


def load(family: Family, weights: dict[str, torch.Tensor], device: torch.device, dtype: torch.dtype = torch.bfloat16) -> Any:
    """ComfyUI's model patcher of the family with these weights, computing in ``dtype``."""
    import comfy.model_patcher

    model = _model(family, weights, device, dtype)
    return comfy.model_patcher.ModelPatcher(model, load_device=device, offload_device=torch.device("cpu"))


def prompt(family: Family, seed: int) -> list[Any]:
    """Random conditioning."""
    generator = torch.Generator().manual_seed(seed)
    pooled = {"pooled_output": torch.randn(1, family.pooled, generator=generator)} if family.pooled else {}
    return [[torch.randn(1, *family.context, generator=generator), pooled]]


def _model(family: Family, weights: dict[str, torch.Tensor], device: torch.device, dtype: torch.dtype | None) -> Any:
    import comfy.supported_models
    import comfy.utils

    config = getattr(comfy.supported_models, family.config)(dict(family.unet))
    config.quant_config = comfy.utils.detect_layer_quantization(weights, "") if weights else None
    config.set_inference_dtype(dtype or torch.float16, dtype, device=device)
    with torch.inference_mode(False):
        model = config.get_model(weights, "", device=device)
        if weights:
            model.load_model_weights(dict(weights), "")
    return model.eval()
