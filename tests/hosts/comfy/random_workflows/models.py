"""A model family with random weights, twice: one for the pack, one for plain ComfyUI beside it."""

from __future__ import annotations

import importlib
import json
import random
from dataclasses import dataclass, replace
from typing import Any

import comfy.model_patcher
import comfy.supported_models
import comfy.utils
import torch
from driver import PACK, has

_models = importlib.import_module(".benchmarks.family_models", PACK.__name__)
_weights = importlib.import_module(".benchmarks.random_weights", PACK.__name__)
noise = _models.noise
#: Those of which a call takes seconds on a CPU, even as small as they are here: one in eight sessions is of one of them.
_SLOW = ("Anima", "Chroma Radiance", "Hunyuan DiT", "Krea 2", "PixArt Sigma", "Stable Video Diffusion")
#: ComfyUI's names of formats whose files hold quantised weights.
FORMATS = ("float8_e4m3fn", "int8_tensorwise", "mxfp8", "nvfp4")
_CPU = torch.device("cpu")


def _inpainting(family: Any, channels: int) -> Any:
    """It is given a mask and the masked picture as further channels."""
    picture = {"concat_latent_image": noise(*family.latent), "concat_mask": noise(1, *family.latent[2:])}
    return replace(family, unet={**family.unet, "in_channels": channels}, more={**family.more, **picture})


FAMILIES = {
    **_models.FAMILIES,
    "SD1.5 inpainting": _inpainting(_models.FAMILIES["SD1.5"], 9),
    "SDXL inpainting": _inpainting(_models.FAMILIES["SDXL"], 9),
}


@dataclass(frozen=True)
class Subject:
    """A model as a session draws it.

    Attributes:
        name: of its family.
        family: what it is built of.
        dtype: what it computes in.
        format: how its linear layers' weights are quantised, or nothing.
    """

    name: str
    family: Any
    dtype: torch.dtype
    format: str

    @property
    def unet(self) -> bool:
        """Whether it is a UNet of convolutions and attention, which many nodes ask for."""
        return "model_channels" in self.family.unet and "transformer_depth" in self.family.unet

    @property
    def blocks(self) -> bool:
        """Whether its blocks are replaced by number, as nodes for diffusion transformers do."""
        return self.name.startswith(
            ("Flux", "SD3", "Chroma", "LongCat", "AuraFlow", "Hunyuan Video", "Wan", "Qwen", "HiDream")
        )

    @property
    def frames(self) -> bool:
        """Whether its latents are videos."""
        return len(self.family.latent) == 5 and self.family.latent[2] > 1

    def __str__(self) -> str:
        return f"{self.name}, {str(self.dtype)[6:]}{f', {self.format}' if self.format else ''}"


def drawn(plan: random.Random, family: str = "") -> Subject:
    """A random model; ``family``: of this one."""
    slow = plan.random() < 0.125
    there = [name for name, each in FAMILIES.items() if hasattr(comfy.supported_models, each.config)]
    name = family or plan.choice([name for name in there if (name in _SLOW) == slow])
    quantised = plan.random() < 0.15 and not FAMILIES[name].config.startswith(("SD", "Stable")) and _takes_quantised()
    dtype = torch.bfloat16 if quantised or plan.random() < 0.1 else torch.float32
    return Subject(name, FAMILIES[name], dtype, plan.choice(FORMATS) if quantised else "")


def _takes_quantised() -> bool:
    """Whether this version has quantised weights that can be written as a file's."""
    return has("comfy.quant_ops") and hasattr(importlib.import_module("comfy.quant_ops").QuantizedTensor, "state_dict")


def built(subject: Subject) -> Any:
    """A fresh model patcher of it, each time with the same weights."""
    config = getattr(comfy.supported_models, subject.family.config)(dict(subject.family.unet))
    config.set_inference_dtype(subject.dtype, subject.dtype if subject.format else None)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=_CPU)
        _fill(model.diffusion_model)
        if subject.format:
            weights = _quantised(dict(model.diffusion_model.state_dict()), subject.format)
            config.quant_config = comfy.utils.detect_layer_quantization(weights, "")
            config.set_inference_dtype(subject.dtype, subject.dtype)
            model = config.get_model({}, "", device=_CPU)
            model.load_model_weights(weights, "")
    return comfy.model_patcher.ModelPatcher(model.eval(), load_device=_CPU, offload_device=_CPU)


def _fill(inside: torch.nn.Module) -> None:
    shapes = {name: each for name, each in inside.named_parameters() if each.is_floating_point()}
    weights = _weights.random_weights(shapes, _CPU, 0)
    for name, weight in weights.items():  # a bias or a scale of zero hides what is done with it
        if weight.dim() < 2:
            weight += noise(*weight.shape)(len(name)).half() * 0.05
    inside.load_state_dict(weights, strict=False)
    for name, buffer in inside.named_buffers():  # those that only a checkpoint fills
        if name.endswith("pos_embed"):
            buffer.normal_(generator=torch.Generator().manual_seed(0))


def _quantised(weights: dict[str, torch.Tensor], how: str) -> dict[str, torch.Tensor]:
    """The weights of blocks' linear layers under the keys of ComfyUI's own quantised files."""
    from comfy.quant_ops import QUANT_ALGOS, QuantizedTensor

    layout, found = QUANT_ALGOS[how]["comfy_tensor_layout"], {}
    for name, weight in weights.items():
        layer = name.removesuffix(".weight")
        if (
            layer == name
            or weight.dim() != 2
            or "." not in layer
            or "embed" in layer
            or any(size % 64 for size in weight.shape)
        ):
            found[name] = weight
            continue
        options = (
            {"per_channel": True}
            if how == "int8_tensorwise"
            else {"scale": "recalculate"}
            if how.startswith("float8")
            else {}
        )
        found |= QuantizedTensor.from_float(weight.float(), layout, **options).state_dict(name)
        found[f"{layer}.comfy_quant"] = torch.tensor(list(json.dumps({"format": how}).encode()), dtype=torch.uint8)
    return found
