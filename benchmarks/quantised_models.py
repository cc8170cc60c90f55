"""Diffusion transformers as ComfyUI builds them from a quantised checkpoint, with random weights.

Needs ``comfy`` to be importable.
"""

from __future__ import annotations

import functools
import importlib
import json
import os
import sys
from dataclasses import dataclass, replace
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from .random_weights import random_weights

FORMATS = {
    "bf16": None,
    "int8": "int8_tensorwise",
    "fp8": "float8_e4m3fn",
    "q8_0": "Q8_0",
    "q4_k": "Q4_K",
    "q6_k": "Q6_K",
}
#: values and bytes of a block, and where its scales are
GGUF = {"Q8_0": (32, 34, (0,)), "Q4_K": (256, 144, (0, 2)), "Q6_K": (256, 210, (208,))}


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
            **{
                "image_model": "flux",
                "in_channels": 16,
                "out_channels": 16,
                "vec_in_dim": 768,
                "context_in_dim": 4096,
                "hidden_size": 3072,
            },
            **{
                "mlp_ratio": 4.0,
                "num_heads": 24,
                "depth": 3,
                "depth_single_blocks": 6,
                "axes_dim": [16, 56, 56],
                "theta": 10000,
            },
            **{
                "patch_size": 2,
                "qkv_bias": True,
                "guidance_embed": True,
                "txt_ids_dims": [],
                "yak_mlp": False,
                "txt_norm": False,
            },
        },
        (1, 16, 128, 128),
        (512, 4096),
        768,
    ),
    "Z-Image, 4 + 4 blocks": Family(
        "ZImage",
        {
            **{
                "image_model": "lumina2",
                "patch_size": 2,
                "in_channels": 16,
                "dim": 3840,
                "cap_feat_dim": 2560,
                "n_layers": 4,
                "qk_norm": True,
            },
            **{
                "n_heads": 30,
                "n_kv_heads": 30,
                "axes_dims": [32, 48, 48],
                "axes_lens": [1536, 512, 512],
                "rope_theta": 256.0,
            },
            **{
                "ffn_dim_multiplier": 8 / 3,
                "z_image_modulation": True,
                "time_scale": 1000.0,
                "pad_tokens_multiple": 32,
                "n_refiner_layers": 2,
            },
        },
        (1, 16, 128, 128),
        (200, 2560),
        cfg=4.0,
    ),
    "Qwen-Image, 6 blocks": Family(
        "QwenImage",
        {"image_model": "qwen_image", "in_channels": 64, "num_layers": 6},
        (1, 16, 1, 166, 166),
        (100, 3584),
        cfg=4.0,
    ),
    "Wan 2.2 5B, 3 blocks": Family(
        "WAN22_T2V",
        {
            **{
                "image_model": "wan2.1",
                "dim": 3072,
                "in_dim": 48,
                "out_dim": 48,
                "num_heads": 24,
                "ffn_dim": 14336,
                "num_layers": 3,
            },
            **{
                "patch_size": (1, 2, 2),
                "freq_dim": 256,
                "window_size": (-1, -1),
                "qk_norm": True,
                "cross_attn_norm": True,
                "eps": 1e-6,
            },
            **{"model_type": "t2v"},
        },
        (1, 48, 21, 44, 80),
        (512, 4096),
    ),
}


# one call of the model a step
FAMILIES["Z-Image turbo, 4 + 4 blocks"] = replace(FAMILIES["Z-Image, 4 + 4 blocks"], cfg=1.0)


def shapes_of(family: Family) -> dict[str, torch.Tensor]:
    """A state dict of the diffusion model whose tensors have no values."""
    return dict(_model(family, {}, torch.device("meta"), None).diffusion_model.state_dict())


def weights_of(family: Family, device: torch.device) -> dict[str, torch.Tensor]:
    """A state dict of the diffusion model in bfloat16."""
    shapes = _model(family, {}, device, None).diffusion_model.state_dict()
    return {key: tensor.to(device, torch.bfloat16) for key, tensor in random_weights(shapes, device, 0).items()}


def quantised(weights: dict[str, torch.Tensor], kind: str | None) -> dict[str, torch.Tensor]:
    """The same weights as a checkpoint of this format has them: linear layers of blocks in 8 bits, each with its scale
    and what says so.
    """
    if kind is None:
        return weights
    found: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if not is_quantised(key, tensor):
            found[key] = tensor
            continue
        if kind in GGUF:
            found[key] = _in_blocks(tensor, kind)
            continue
        found.update(in_8_bits(tensor, kind).state_dict(key))
        found[f"{key.removesuffix('.weight')}.comfy_quant"] = torch.tensor(
            list(json.dumps({"format": kind}).encode()), dtype=torch.uint8
        )
    return found


def _in_blocks(tensor: torch.Tensor, kind: str) -> torch.Tensor:
    """Random blocks of GGUF's with values about as large as the tensor's, in ComfyUI-GGUF's class."""
    values, size, halves = GGUF[kind]
    generator = torch.Generator(tensor.device).manual_seed(tensor.numel())
    shape = (tensor.shape[0], tensor.shape[1] // values, size)
    data = torch.randint(0, 256, shape, dtype=torch.uint8, device=tensor.device, generator=generator)
    scale = (tensor.float().std() / {"Q8_0": 74, "Q4_K": 200, "Q6_K": 1370}[kind]).half()
    for begin in halves:
        data[:, :, begin : begin + 2] = scale.view(1).view(torch.uint8)
    return _gguf().ops.GGMLTensor(
        data.reshape(tensor.shape[0], -1),
        tensor_type=importlib.import_module("gguf").GGMLQuantizationType[kind],
        tensor_shape=tensor.shape,
    )


@functools.cache
def _gguf() -> Any:
    """ComfyUI-GGUF's files, from the folder that COMFYUI_GGUF_PATH names."""
    package = sys.modules["comfyui_gguf"] = ModuleType("comfyui_gguf")
    package.__path__ = [os.environ["COMFYUI_GGUF_PATH"]]
    sys.modules.setdefault("nodes", ModuleType("nodes"))  # the pack's own file of nodes asks for it by name alone
    return SimpleNamespace(
        ops=importlib.import_module("comfyui_gguf.ops"), nodes=importlib.import_module("comfyui_gguf.nodes")
    )


def meant(weights: dict[str, torch.Tensor], kind: str | None) -> dict[str, torch.Tensor]:
    """What a checkpoint of this format means, in float32."""
    return {
        key: _dequantised(tensor, kind if is_quantised(key, tensor) else None).float()
        for key, tensor in weights.items()
    }


def _dequantised(tensor: torch.Tensor, kind: str | None) -> torch.Tensor:
    if kind in GGUF:
        return _gguf().ops.dequantize_tensor(_in_blocks(tensor, kind), torch.float32, torch.float32)
    return tensor if kind is None else in_8_bits(tensor, kind).dequantize()


def lora(weights: dict[str, torch.Tensor], seed: int, rank: int = 16) -> dict[str, torch.Tensor]:
    """A LoRA on all that :func:`quantised` quantises: at strength 1 it adds a tenth of a weight's norm."""
    found: dict[str, torch.Tensor] = {}
    for key, tensor in weights.items():
        if is_quantised(key, tensor):
            generator = torch.Generator(tensor.device).manual_seed(seed + len(found))
            random = functools.partial(torch.randn, device=tensor.device, generator=generator)
            (rows, columns), place = tensor.shape, f"diffusion_model.{key.removesuffix('.weight')}"
            found[f"{place}.lora_up.weight"] = (
                random(rows, rank).mul(0.1 / rank**0.5 * float(tensor.float().std())).bfloat16()
            )
            found[f"{place}.lora_down.weight"] = random(rank, columns).bfloat16()
    return found


def is_quantised(key: str, tensor: torch.Tensor) -> bool:
    """Whether a checkpoint in fewer bits has this weight so: that of a linear layer of a block."""
    layer = key.removesuffix(".weight")
    return layer != key and tensor.dim() == 2 and "." in layer and not any(size % 256 for size in tensor.shape)


def in_8_bits(tensor: torch.Tensor, kind: str) -> Any:
    """ComfyUI's quantised tensor of a weight, in a format by ComfyUI's name."""
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    return QuantizedTensor.from_float(tensor, QUANT_ALGOS[kind]["comfy_tensor_layout"], scale="recalculate")


def load(
    family: Family, weights: dict[str, torch.Tensor], device: torch.device, dtype: torch.dtype = torch.bfloat16
) -> Any:
    """ComfyUI's model patcher of the family with these weights, computing in ``dtype``."""
    import comfy.model_patcher

    in_blocks = any(type(tensor).__name__ == "GGMLTensor" for tensor in weights.values())
    model = _model(family, weights, device, dtype, _gguf().ops.GGMLOps() if in_blocks else None)
    patcher = comfy.model_patcher.ModelPatcher(model, load_device=device, offload_device=torch.device("cpu"))
    return _gguf().nodes.GGUFModelPatcher.clone(patcher) if in_blocks else patcher


def prompt(family: Family, seed: int) -> list[Any]:
    """Random conditioning."""
    generator = torch.Generator().manual_seed(seed)
    pooled = {"pooled_output": torch.randn(1, family.pooled, generator=generator)} if family.pooled else {}
    return [[torch.randn(1, *family.context, generator=generator), pooled]]


def _model(
    family: Family,
    weights: dict[str, torch.Tensor],
    device: torch.device,
    dtype: torch.dtype | None,
    operations: Any = None,
) -> Any:
    import comfy.supported_models
    import comfy.utils

    config = getattr(comfy.supported_models, family.config)(dict(family.unet))
    config.quant_config = comfy.utils.detect_layer_quantization(weights, "") if weights and operations is None else None
    config.custom_operations = operations
    config.set_inference_dtype(dtype or torch.float16, dtype, device=device)
    with torch.inference_mode(False):
        model = config.get_model(weights, "", device=device)
        if weights:
            model.load_model_weights(dict(weights), "")
    return model.eval()
