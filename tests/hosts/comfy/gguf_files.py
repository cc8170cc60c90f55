"""Checkpoints in GGUF's blocks, as ComfyUI-GGUF's own loader reads them: ``COMFYUI_GGUF_PATH`` names its folder."""

from __future__ import annotations

import importlib
import os
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

KINDS = ("Q8_0", "Q4_0", "Q5_1", "Q4_K", "Q5_K", "Q6_K")
_HALVES = {"Q6_K": (208,), "Q5_1": (0, 2), "Q4_K": (0, 2), "Q5_K": (0, 2)}  # where a block has its scales


def pack() -> Any:
    """The pack's files without its ``__init__``, or None."""
    if "COMFYUI_GGUF_PATH" not in os.environ:
        return None
    if "comfyui_gguf" not in sys.modules:
        package = sys.modules["comfyui_gguf"] = ModuleType("comfyui_gguf")
        package.__path__ = [os.environ["COMFYUI_GGUF_PATH"]]
    return SimpleNamespace(
        ops=importlib.import_module("comfyui_gguf.ops"), nodes=importlib.import_module("comfyui_gguf.nodes")
    )


def weights(pack: Any, plain: dict[str, torch.Tensor], kind: str) -> dict[str, Any]:
    """A checkpoint's tensors: linear layers' weights of this type, others as 16-bit tensors of the same class."""
    import gguf

    found = {}
    for seed, (name, weight) in enumerate(plain.items()):
        name = name.removeprefix("model.diffusion_model.")
        linear = name.endswith(".weight") and weight.dim() == 2 and not weight.shape[1] % 256 and "embed" not in name
        f16 = gguf.GGMLQuantizationType.F16
        found[name] = (
            _in_blocks(pack, weight, kind, seed)
            if linear
            else pack.ops.GGMLTensor(weight, tensor_type=f16, tensor_shape=weight.shape)
        )
    return found


def _in_blocks(pack: Any, weight: torch.Tensor, kind: str, seed: int) -> torch.Tensor:
    """A weight of this type: its own values where ``gguf`` can quantise to it, else random ones of its size."""
    import gguf

    number = gguf.GGMLQuantizationType[kind]
    values, size = gguf.GGML_QUANT_SIZES[number]
    try:
        data = torch.from_numpy(gguf.quants.quantize(weight.float().numpy(), number))
    except NotImplementedError:
        shape = (weight.shape[0], weight.shape[1] // values, size)
        data = torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(seed))
        for begin in _HALVES[kind]:
            data[:, :, begin : begin + 2] = torch.full((1,), float(weight.float().std()) / 600).half().view(torch.uint8)
        data = data.reshape(weight.shape[0], -1)
    return pack.ops.GGMLTensor(data, tensor_type=number, tensor_shape=weight.shape)
