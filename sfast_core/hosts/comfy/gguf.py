"""ComfyUI-GGUF's layers make their weights of a file's blocks at each call; a trace has that as one op on the bytes.

What the layer does with the weight behind that (a LoRA is added to it at each call) is recorded as it is.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import torch

from ...capture import Recorder
from ...libraries.blocks import values_of
from ...weights.blocks import is_of_blocks

DEQUANTISE = "dequantize_tensor"
BLOCKS = "GGMLTensor"


def loaders_of_blocks() -> list[ModuleType]:
    """The files that have layers such as these: ComfyUI-GGUF's and those of packs that were made from it."""
    return [file for file in list(sys.modules.values()) if {DEQUANTISE, BLOCKS} <= getattr(file, "__dict__", {}).keys()]


def dequantised(recorder: Recorder, original: Any, tensor: Any, dtype: torch.dtype | None = None, dequant_dtype: Any = None) -> Any:
    """What ``dequantize_tensor`` returns, bit for bit, by an op that can be recorded.

    Args:
        recorder: of the call.
        original: the loader's function, for what isn't known.
        tensor: a weight or bias.
        dtype: of the result.
        dequant_dtype: what is computed in: a dtype, "target" for the result's, None for that of the blocks' scales, float16.
    """
    if recorder.in_leaf or not isinstance(tensor, torch.Tensor) or not is_of_blocks(tensor) or dtype is None:
        return original(tensor, dtype, dequant_dtype)
    return values_of(recorder, tensor, dtype, dtype if dequant_dtype == "target" else dequant_dtype or torch.float16)


def with_patches_on_device(patcher: Any) -> Any:
    """Let a patcher of ComfyUI-GGUF's keep LoRAs on the GPU, as its advanced loader offers: else each call would bring them there anew.

    Args:
        patcher: any ModelPatcher that nobody else has yet.

    Returns:
        The same object.
    """
    if hasattr(patcher, "patch_on_device"):
        patcher.patch_on_device = True
    return patcher


def as_plain(tensor: torch.Tensor | None) -> torch.Tensor | None:
    """The memory of a tensor of the loader's class that is what is in it; any other tensor as it is."""
    if tensor is None or type(tensor).__name__ != BLOCKS:
        return tensor
    with torch._C.DisableTorchFunction():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
