"""``python -m benchmarks.vae``: the VAE's decoder at 1024x1024, eager and torch.compile beside ours, interleaved in one process.

The decoder of SD1.5 and SDXL (they differ in their weights alone), random weights, one picture, in fp16 and bf16.
"""

from __future__ import annotations

from typing import Any

import torch

from .full_size import new_modules
from .interleaved import Subject, main

_DEVICE = torch.device("cuda")
_SIDE = 128  #: of the latent


def _build(dtype: torch.dtype) -> Any:
    from diffusers import AutoencoderKL

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        vae = AutoencoderKL(
            block_out_channels=(128, 256, 512, 512),
            down_block_types=("DownEncoderBlock2D",) * 4,
            up_block_types=("UpDecoderBlock2D",) * 4,
            layers_per_block=2,
        )
    return vae.decoder.eval().requires_grad_(False)


def _inputs(_: Any, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator(_DEVICE).manual_seed(1)
    return {"sample": torch.randn(1, 4, _SIDE, _SIDE, device=_DEVICE, dtype=dtype, generator=generator)}


if __name__ == "__main__":
    main(
        "vae", __doc__, "VAE decoder, 1024x1024", [Subject("decoder", dtype, _build, _inputs) for dtype in (torch.float16, torch.bfloat16)]
    )
