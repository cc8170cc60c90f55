"""``python -m benchmarks.transformer``: a diffusion transformer's forward; eager, torch.compile, ours, interleaved.

SD3 medium and Flux at 1024x1024 in diffusers' classes, random weights, bf16. Each provider has a copy of the weights,
and a whole Flux of 24 GB would not fit four times: it has 5 of its 19 double blocks and 10 of its 38 single ones, each
of full size.
"""

from __future__ import annotations

from typing import Any

import torch

from .full_size import new_modules
from .interleaved import Subject, main

_DEVICE = torch.device("cuda")
_SIDE = 128  #: of the latent


def _build_sd3(dtype: torch.dtype) -> Any:
    from diffusers import SD3Transformer2DModel

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        model = SD3Transformer2DModel(
            sample_size=_SIDE,
            num_layers=24,
            num_attention_heads=24,
            caption_projection_dim=1536,
            pos_embed_max_size=192,
        )
    return model.eval().requires_grad_(False)


def _sd3_inputs(_: Any, dtype: torch.dtype) -> dict[str, Any]:
    """Two prompts, as guidance asks for them, of 77 and 256 tokens."""
    randn = _random(dtype)
    return {
        "hidden_states": randn(1, 16, _SIDE, _SIDE).repeat(2, 1, 1, 1),
        "encoder_hidden_states": randn(2, 77 + 256, 4096),
        "pooled_projections": randn(2, 2048),
        "timestep": torch.tensor([500.0, 500.0], device=_DEVICE),
        "return_dict": False,
    }


def _build_flux(dtype: torch.dtype, double: int = 5, single: int = 10) -> Any:
    from diffusers import FluxTransformer2DModel

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        model = FluxTransformer2DModel(num_layers=double, num_single_layers=single, guidance_embeds=True)
    return model.eval().requires_grad_(False)


def _flux_inputs(_: Any, dtype: torch.dtype) -> dict[str, Any]:
    """One prompt of 512 tokens: its guidance is an argument."""
    randn, side = _random(dtype), _SIDE // 2
    places = torch.stack(torch.meshgrid(*(torch.arange(float(count)) for count in (1, side, side)), indexing="ij"), -1)
    return {
        "hidden_states": randn(1, side * side, 64),
        "encoder_hidden_states": randn(1, 512, 4096),
        "pooled_projections": randn(1, 768),
        "timestep": torch.tensor([0.5], device=_DEVICE, dtype=dtype),
        "guidance": torch.tensor([3.5], device=_DEVICE),
        "img_ids": places.reshape(-1, 3).to(_DEVICE),
        "txt_ids": torch.zeros(512, 3, device=_DEVICE),
        "return_dict": False,
    }


def _random(dtype: torch.dtype) -> Any:
    generator = torch.Generator(_DEVICE).manual_seed(1)
    return lambda *shape: torch.randn(shape, device=_DEVICE, dtype=dtype, generator=generator)


if __name__ == "__main__":
    subjects = [
        Subject("SD3 medium", torch.bfloat16, _build_sd3, _sd3_inputs),
        Subject("Flux, 5 + 10 blocks", torch.bfloat16, _build_flux, _flux_inputs),
    ]
    main("transformer", __doc__, "transformer, 1024x1024", subjects)
