"""Write models for the real server into its folder ``models``: ``python make_checkpoints.py FOLDER``.

In ComfyUI's Python.

Checkpoints, text encoder and VAE included: ``tiny-sd15.safetensors`` (340 MB: CLIP-L can't be smaller) and
``tiny-sdxl.safetensors``, a Vega whose two text encoders are all zeros: these are holes in the file, so that it takes
220 MB instead of 1.9 GB, and its prompts mean nothing. A LoRA and a ControlNet for SD1.5, ``tiny-lora`` and
``tiny-control``. And beside ``models`` an input picture, ``tiny.png``.
"""

from __future__ import annotations

import sys
from pathlib import Path

import driver  # noqa: F401  makes ComfyUI importable
import tiny
import torch


def sd15(folder: Path) -> None:
    """A SD1.5 checkpoint."""
    tiny.save(tiny.state_dict("sd15") | tiny.text_and_image(), folder / "tiny-sd15.safetensors")


def sdxl(folder: Path) -> None:
    """A checkpoint that ComfyUI takes for SDXL's small sister."""
    import comfy.sdxl_clip
    import comfy.supported_models

    names = comfy.sdxl_clip.SDXLClipModel(device="meta", dtype=torch.float16).state_dict()
    stored = comfy.supported_models.SDXL({}).process_clip_state_dict_for_saving(dict(names))
    zeros = {name: torch.zeros(like.shape, dtype=torch.float16) for name, like in stored.items()}
    vae = {name: value for name, value in tiny.text_and_image().items() if name.startswith("first_stage_model.")}
    tiny.save(tiny.state_dict("vega") | zeros | vae, folder / "tiny-sdxl.safetensors")


def extras(models: Path) -> None:
    """What workflows load besides a checkpoint."""
    from PIL import Image

    for kind, weights in (("loras/tiny-lora", tiny.lora("sd15")), ("controlnet/tiny-control", tiny.control_net())):
        (models / kind).parent.mkdir(parents=True, exist_ok=True)
        tiny.save(weights, models / f"{kind}.safetensors")
    grey = (tiny.noise((96, 96), 3).clamp(-2, 2) * 60 + 127).to(torch.uint8)
    (models.parent / "input").mkdir(exist_ok=True)
    Image.fromarray(grey.numpy()).convert("RGB").save(models.parent / "input" / "tiny.png")


if __name__ == "__main__":
    sd15(Path(sys.argv[1]) / "checkpoints")
    sdxl(Path(sys.argv[1]) / "checkpoints")
    extras(Path(sys.argv[1]))
