"""Families' further models, each fed as ComfyUI's own nodes feed it: inpainting, start pictures, controls, sound."""

from __future__ import annotations

import importlib
from dataclasses import replace
from typing import Any

from driver import PACK

_models = importlib.import_module(".benchmarks.family_models", PACK.__name__)
_FAMILIES, _noise = _models.FAMILIES, _models.noise


class _Vision:
    """What CLIP Vision says of a picture."""

    def __init__(self, seed: int) -> None:
        self.penultimate_hidden_states = _noise(1, 257, 1280)(seed)


def _of(name: str, config: str, more: dict[str, Any], **unet: Any) -> Any:
    """The family of this name as another of ComfyUI's classes, with more options and inputs."""
    family = _FAMILIES[name]
    return replace(family, config=config, unet={**family.unet, **unet}, more={**family.more, **more})


def _masked(shape: tuple[int, ...], channels: int = 1, pixels: int = 1) -> dict[str, Any]:
    """A picture and which part of it is kept; ``pixels``: of the mask for one of the latent."""
    *front, height, width = shape[2:]
    mask = (1, channels, *front, height * pixels, width * pixels)
    return {"concat_latent_image": _noise(*shape), "concat_mask": lambda seed: (_noise(*mask)(seed) > 0).float()}


def _of_sd(name: str) -> Any:
    family = _FAMILIES[name]
    return _of(name, family.config, _masked(family.latent), in_channels=9)


_IMAGE, _VIDEO = _FAMILIES["Flux"].latent, _FAMILIES["Wan 2.1 and 2.2"].latent
_FRAMES, _HEIGHT, _WIDTH = _VIDEO[2:]
_HUNYUAN_IMAGE = {
    **{
        "in_channels": 64,
        "out_channels": 64,
        "patch_size": [1, 1],
        "vec_in_dim": None,
        "axes_dim": [64, 64],
        "byt5": True,
    },
    "guidance_embed": False,
}
VARIANTS = {
    "SD1.5 inpainting": _of_sd("SD1.5"),
    "SDXL inpainting": _of_sd("SDXL"),
    "Flux Fill": _of("Flux", "FluxInpaint", _masked(_IMAGE, pixels=8), in_channels=96),
    "Flux Canny": _of("Flux", "Flux", {"concat_latent_image": _noise(*_IMAGE)}, in_channels=32),
    "Flux schnell": _of("Flux", "FluxSchnell", {}, guidance_embed=False),
    "Z-Image base": replace(_FAMILIES["Z-Image"], cfg=4.0),
    "Wan 2.2 image to video": _of("Wan 2.1 and 2.2", "WAN21_T2V", _masked(_VIDEO, 4), in_dim=36),
    "Wan 2.1 image to video": _of(
        "Wan 2.1 and 2.2", "WAN21_I2V", {**_masked(_VIDEO, 4), "clip_vision_output": _Vision}, in_dim=36, model_type="i2v"
    ),
    "Wan VACE": _of(
        "Wan 2.1 and 2.2", "WAN21_Vace",
        {
            "vace_frames": lambda seed: [_noise(1, 32, *_VIDEO[2:])(seed)],
            "vace_mask": lambda seed: [(_noise(1, 64, *_VIDEO[2:])(seed) > 0).float()],
            "vace_strength": lambda seed: [(1.0, 0.6)[seed % 2]],
        },
        model_type="vace", vace_in_dim=96, vace_layers=1,
    ),
    "Wan camera": _of(
        "Wan 2.1 and 2.2", "WAN21_Camera",
        {"clip_vision_output": _Vision, "camera_conditions": _noise(1, 24, _FRAMES, _HEIGHT * 8, _WIDTH * 8)},
        model_type="camera", in_dim=32,
    ),
    "Wan sound to video": _of(
        "Wan 2.1 and 2.2", "WAN22_S2V",
        {"audio_embed": _noise(1, 25, 64, _FRAMES * 4), "reference_latents": lambda seed: [_noise(1, 16, 1, _HEIGHT, _WIDTH)(seed)]},
        model_type="s2v", audio_dim=64, audio_inject_layers=[0, 1],
    ),
    "Wan HuMo": _of(
        "Wan 2.1 and 2.2", "WAN21_HuMo", {"audio_embed": _noise(1, _FRAMES, 8, 5, 1280)}, model_type="humo"
    ),
    "Wan Animate 2": _of(
        "Wan 2.1 and 2.2", "WAN_Animate2",
        {
            **{**_masked(_VIDEO, 4), "clip_vision_output": _Vision, "clip_vision_output_pose": _Vision},
            "pose_video_latent": _noise(1, 16, _FRAMES - 1, _HEIGHT, _WIDTH),
        },
        in_dim=36, model_type="animate2",
    ),
    "Hunyuan Video image to video": _of("Hunyuan Video", "HunyuanVideoI2V", _masked(_VIDEO), in_channels=33),
    "Hunyuan Image 2.1": replace(
        _of("Hunyuan Video", "HunyuanImage21", {"conditioning_byt5small": _noise(1, 32, 1472)}, **_HUNYUAN_IMAGE),
        latent=(1, 64, 8, 8), pooled=0, cfg=3.5,
    ),
    "Kandinsky 5 image": replace(
        _of("Kandinsky 5", "Kandinsky5Image", {}, visual_embed_dim=64, rope_scale_factor=(1.0, 1.0, 1.0)), latent=(1, 16, 1, 16, 16)
    ),
    "Stable Cascade": _models.Family(
        "Stable_Cascade_C",
        {"stable_cascade_stage": "c", "c_cond": 128, "c_hidden": [128, 128], "nhead": [2, 2], "blocks": [[1, 1], [1, 1]]},
        (1, 16, 12, 12), (77, 1280), 1280, 4.0,
    ),
}  # fmt: skip
