"""A model family with random weights, twice: one for the pack, one for plain ComfyUI beside it."""

from __future__ import annotations

import importlib
import random
from dataclasses import dataclass
from typing import Any

import comfy.model_patcher
import comfy.supported_models
import torch
from driver import PACK

from random_workflows import quantised
from random_workflows.variants import VARIANTS

_models = importlib.import_module(".benchmarks.family_models", PACK.__name__)
_weights = importlib.import_module(".benchmarks.random_weights", PACK.__name__)
noise = _models.noise
#: Those of which a call takes seconds on a CPU, even as small as they are here: one in eight sessions is of one of them.
_SLOW = ("Anima", "Chroma Radiance", "Hunyuan DiT", "Krea 2", "PixArt Sigma", "Stable Video Diffusion")
_CPU = torch.device("cpu")
FAMILIES = {**_models.FAMILIES, **VARIANTS}


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
    formats = (
        quantised.formats() if name not in _SLOW and not FAMILIES[name].config.startswith(("SD", "Stable")) else ()
    )
    how = plan.choice(formats) if formats and plan.random() < 0.25 else ""
    return Subject(name, FAMILIES[name], torch.bfloat16 if how or plan.random() < 0.1 else torch.float32, how)


def built(subject: Subject, seed: int = 0) -> Any:
    """A fresh model patcher of it, each time with the same weights; ``seed``: those of another model."""
    config = getattr(comfy.supported_models, subject.family.config)(dict(subject.family.unet))
    config.set_inference_dtype(subject.dtype, subject.dtype if subject.format else None)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=_CPU)
        _fill(model.diffusion_model, seed)
        if subject.format:
            weights = dict(model.diffusion_model.state_dict())
            model = quantised.loaded(config, weights, subject.format, subject.dtype)
    patcher = comfy.model_patcher.ModelPatcher(model.eval(), load_device=_CPU, offload_device=_CPU)
    return quantised.patcher(patcher, subject.format)


def _fill(inside: torch.nn.Module, seed: int) -> None:
    shapes = {name: each for name, each in inside.named_parameters() if each.is_floating_point()}
    weights = _weights.random_weights(shapes, _CPU, seed)
    for name, weight in weights.items():  # a bias or a scale of zero hides what is done with it
        if weight.dim() < 2:
            weight += noise(*weight.shape)(len(name)).half() * 0.05
    inside.load_state_dict(weights, strict=False)
    for name, buffer in inside.named_buffers():  # those that only a checkpoint fills
        if name.endswith("pos_embed"):
            buffer.normal_(generator=torch.Generator().manual_seed(0))
