"""SD1.5's and SDXL's UNets at full size with random weights, in diffusers' classes, for benchmarks and the demo."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

_SDXL = {
    "sample_size": 128,
    "block_out_channels": (320, 640, 1280),
    "down_block_types": ("DownBlock2D", "CrossAttnDownBlock2D", "CrossAttnDownBlock2D"),
    "up_block_types": ("CrossAttnUpBlock2D", "CrossAttnUpBlock2D", "UpBlock2D"),
    "transformer_layers_per_block": (1, 2, 10),
    "attention_head_dim": (5, 10, 20),
    "cross_attention_dim": 2048,
    "use_linear_projection": True,
    "addition_embed_type": "text_time",
    "addition_time_embed_dim": 256,
    "projection_class_embeddings_input_dim": 2816,
}


@dataclass(frozen=True)
class FullSize:
    """One model: its name, diffusers' configuration, and the free memory that eager and fast together need."""

    name: str
    config: dict[str, Any]
    needed_bytes: int


MODELS = (
    FullSize("SD1.5 512x512", {"sample_size": 64, "cross_attention_dim": 768}, 5 * 2**30),
    FullSize("SDXL 1024x1024", _SDXL, 12 * 2**30),
)


@contextlib.contextmanager
def new_modules(device: torch.device, dtype: torch.dtype) -> Iterator[None]:
    """Parameters made inside are made on ``device`` in ``dtype``: SDXL never passes through the CPU's memory."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with torch.device(device):
            yield
    finally:
        torch.set_default_dtype(before)


def build_unet(config: dict[str, Any], device: torch.device, dtype: torch.dtype) -> Any:
    """A UNet with PyTorch's own random initialisation (seed 0), under which the residual stream stays O(1): each linear
    layer and convolution gives a third of its input's variance.
    """
    from diffusers import UNet2DConditionModel

    torch.manual_seed(0)
    with new_modules(device, dtype):
        return UNet2DConditionModel(**config).eval().requires_grad_(False)


def inputs_for(unet: Any, device: torch.device, dtype: torch.dtype, batch: int = 2) -> dict[str, Any]:
    """Keyword arguments of one forward, as guidance asks for it: latents twice (of a batch of one once), step, prompts
    of 77 tokens, and SDXL's pooled prompts and sizes.
    """
    generator = torch.Generator(device).manual_seed(1)

    def randn(*shape: int) -> torch.Tensor:
        return torch.randn(shape, device=device, dtype=dtype, generator=generator)

    side, width = unet.config.sample_size, unet.config.cross_attention_dim
    inputs = {
        "sample": randn(-(-batch // 2), unet.config.in_channels, side, side).repeat(min(batch, 2), 1, 1, 1),
        "timestep": torch.tensor(500, device=device),
        "encoder_hidden_states": randn(batch, 77, width),
        "return_dict": False,
    }
    if unet.config.addition_embed_type == "text_time":
        sizes = torch.tensor([[1024.0, 1024.0, 0.0, 0.0, 1024.0, 1024.0]] * batch, device=device, dtype=dtype)
        inputs["added_cond_kwargs"] = {"text_embeds": randn(batch, 1280), "time_ids": sizes}
    return inputs
