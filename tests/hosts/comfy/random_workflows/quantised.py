"""Weights as quantised files hold them: ComfyUI's own formats, and GGUF's blocks where ``COMFYUI_GGUF_PATH`` is set."""

from __future__ import annotations

import importlib
import json
from typing import Any

import comfy.utils
import gguf_files
import torch
from driver import has

#: ComfyUI's names of formats whose files hold quantised weights.
_OWN = ("float8_e4m3fn", "int8_tensorwise", "mxfp8", "nvfp4")


def formats() -> tuple[str, ...]:
    """The formats that this ComfyUI can load."""
    own = has("comfy.quant_ops") and hasattr(importlib.import_module("comfy.quant_ops").QuantizedTensor, "state_dict")
    return (*(_OWN if own else ()), *(gguf_files.KINDS if gguf_files.pack() else ()))


def loaded(config: Any, weights: dict[str, torch.Tensor], how: str, dtype: torch.dtype) -> Any:
    """A model of this configuration, its linear layers' weights in this format."""
    device = torch.device("cpu")
    if how in gguf_files.KINDS:
        pack = gguf_files.pack()
        weights, config.custom_operations = gguf_files.weights(pack, weights, how), pack.ops.GGMLOps()
    else:
        weights = _in_comfyui_s(weights, how)
        config.quant_config = comfy.utils.detect_layer_quantization(weights, "")
    config.set_inference_dtype(dtype, dtype)
    model = config.get_model({}, "", device=device)
    model.load_model_weights(weights, "")
    return model


def patcher(model: Any, how: str) -> Any:
    """The patcher as the format's own loader makes it."""
    return gguf_files.pack().nodes.GGUFModelPatcher.clone(model) if how in gguf_files.KINDS else model


def _in_comfyui_s(weights: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    """The weights of blocks' linear layers under the keys of ComfyUI's own quantised files."""
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    layout, found = QUANT_ALGOS[how]["comfy_tensor_layout"], {}
    options: dict[str, Any] = {"per_channel": True} if how == "int8_tensorwise" else {}
    if how.startswith("float8"):
        options = {"scale": "recalculate"}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        odd = any(size % 64 for size in weight.shape)
        if layer == name or weight.dim() != 2 or "." not in layer or "embed" in layer or odd:
            found[name] = weight
            continue
        found |= QuantizedTensor.from_float(weight.float(), layout, **options).state_dict(name)
        found[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps({"format": how}).encode()), dtype=torch.uint8)
    return found
