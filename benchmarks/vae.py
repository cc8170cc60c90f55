"""``python -m benchmarks.vae``: autoencoders' decoders; eager, torch.compile and ours, interleaved.

The decoder of SD1.5 and SDXL (they differ in their weights alone) at 1024x1024 in fp16, bf16 and float32, Flux.2's and
Qwen-Image's at 1024x1024, and of videos Wan 2.1's (480p, 81 frames), LTX's (768x512, 121 frames) and HunyuanVideo's
(256x256, 33 frames, a tile): random weights, bf16. What is timed of those is ``decode``, with the loop over frames that
diffusers has around the decoder; ``--models Wan`` measures one alone.
"""

from __future__ import annotations

import functools
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


#: diffusers' class, the latent, and how often a round decodes it.
_WHOLE: dict[str, tuple[str, tuple[int, ...], int]] = {
    "Flux.2": ("AutoencoderKLFlux2", (1, 32, _SIDE, _SIDE), 8),
    "Qwen-Image": ("AutoencoderKLQwenImage", (1, 16, 1, _SIDE, _SIDE), 8),
    "Wan": ("AutoencoderKLWan", (1, 16, 21, 60, 104), 1),
    "LTX": ("AutoencoderKLLTXVideo", (1, 128, 16, 16, 24), 2),
    "HunyuanVideo": ("AutoencoderKLHunyuanVideo", (1, 16, 9, 32, 32), 2),
}


def _whole(name: str, dtype: torch.dtype) -> Any:
    import diffusers

    torch.manual_seed(0)
    with new_modules(_DEVICE, dtype):
        vae = getattr(diffusers, _WHOLE[name][0])()
    return vae.eval().requires_grad_(False)


def _latent(name: str, _: Any, dtype: torch.dtype) -> dict[str, Any]:
    generator = torch.Generator(_DEVICE).manual_seed(1)
    return {"z": torch.randn(_WHOLE[name][1], device=_DEVICE, dtype=dtype, generator=generator)}


def _decode(vae: Any, z: torch.Tensor) -> torch.Tensor:
    decoded: torch.Tensor = vae.decode(z, return_dict=False)[0]
    return decoded


if __name__ == "__main__":
    halves = [Subject("decoder", dtype, _build, _inputs) for dtype in (torch.float16, torch.bfloat16, torch.float32)]
    wholes = [
        Subject(
            name,
            torch.bfloat16,
            functools.partial(_whole, name),
            functools.partial(_latent, name),
            parts=("decoder",),
            call=_decode,
            calls=calls,
            rounds=15 if calls > 2 else 4,
            graph_pixels=64 * 64,  # as in a pipeline
        )
        for name, (_, _, calls) in _WHOLE.items()
    ]
    main("vae", __doc__, "VAE decode", [*halves, *wholes])
