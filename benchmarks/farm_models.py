"""``python -m benchmarks.farm_models NAME FOLDER``: a whole checkpoint with random weights and some LoRAs of it, as
files that ComfyUI's loaders take. Needs ``COMFYUI_PATH``.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import torch

from .clip_shapes import clip_l
from .comfy_models import checkpoint, lora, shapes_of
from .random_weights import random_weights

LORAS = 2
_VAE = {
    "double_z": True,
    "z_channels": 4,
    "resolution": 256,
    "in_channels": 3,
    "out_ch": 3,
    "ch": 128,
    "ch_mult": [1, 2, 4, 4],
    "num_res_blocks": 2,
    "attn_resolutions": [],
    "dropout": 0.0,
}


def lora_name(number: int) -> str:
    """The file of a LoRA."""
    return f"farm-{number}.safetensors"


def write_models(name: str, folder: Path, device: torch.device) -> None:
    """Write ``checkpoints/farm.safetensors`` and the LoRAs below ``folder``.

    Args:
        name: of ``SD1.5`` and ``tiny``, which ComfyUI takes for one.
        folder: of models.
        device: where the random numbers are made.
    """
    from comfy.ldm.models.autoencoder import AutoencoderKL
    from safetensors.torch import save_file

    with torch.device("meta"):
        vae = shapes_of(lambda: AutoencoderKL(embed_dim=4, ddconfig=_VAE))
        rest = {f"first_stage_model.{key}": value for key, value in vae.items()}
        rest |= {key: torch.empty(shape) for key, shape in clip_l("cond_stage_model")}
    (folder / "checkpoints").mkdir(parents=True, exist_ok=True)
    (folder / "loras").mkdir(exist_ok=True)
    save_file(checkpoint(name, device) | random_weights(rest, device, 1), folder / "checkpoints" / "farm.safetensors")
    for number in range(LORAS):
        save_file(lora(name, number, device), folder / "loras" / lora_name(number))


if __name__ == "__main__":
    sys.path.insert(0, os.environ["COMFYUI_PATH"])
    import comfy.options  # noqa: F401  (it leaves this program's arguments alone)
    from comfy.cli_args import args as comfy_args

    comfy_args.cpu = not torch.cuda.is_available()  # before anything imports comfy.model_management
    with torch.inference_mode():
        write_models(sys.argv[1], Path(sys.argv[2]), torch.device("cuda" if torch.cuda.is_available() else "cpu"))
