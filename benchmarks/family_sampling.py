"""A family's model in ComfyUI with random weights, sampled: what :mod:`.families` and :mod:`.families_wide` measure."""

from __future__ import annotations

import statistics
import time
from typing import Any

import torch

from .family_models import Family
from .random_weights import random_weights


def build(family: Family, device: torch.device, dtype: torch.dtype) -> Any:
    """ComfyUI's model patcher of a family, with weights that are the same in every dtype."""
    import comfy.model_patcher
    import comfy.supported_models

    config = getattr(comfy.supported_models, family.config)(dict(family.unet))
    config.set_inference_dtype(dtype, None, device=device)
    with torch.inference_mode(False):
        model = config.get_model({}, "", device=device)
        inside = model.diffusion_model
        weights = random_weights(
            {name: each for name, each in inside.named_parameters() if each.is_floating_point()}, torch.device("cpu"), 0
        )
        inside.load_state_dict({name: weight.bfloat16() for name, weight in weights.items()}, strict=False)
        for name, buffer in inside.named_buffers():  # those that only a checkpoint fills
            if name.endswith("pos_embed"):
                buffer.normal_(generator=torch.Generator(buffer.device).manual_seed(0))
    return comfy.model_patcher.ModelPatcher(model.eval(), load_device=device, offload_device=torch.device("cpu"))


def applied(patcher: Any) -> Any:
    from sfast_core.hosts.comfy import apply

    return apply(patcher)


def euler(patcher: Any, cfg: float, steps: int, noise: Any, prompts: Any, latent: Any, **more: Any) -> Any:
    """What ComfyUI's sampler makes of noise and a pair of prompts; ``more`` goes to it by name."""
    import comfy.sample

    return comfy.sample.sample(
        patcher, noise, steps, cfg, "euler", "simple", *prompts, latent, disable_pbar=True, seed=0, **more
    )


def sample(patcher: Any, family: Family, steps: int) -> torch.Tensor:
    import comfy.nested_tensor
    import comfy.sample

    latent: Any = torch.zeros(family.latent)
    mask: Any = None
    if family.from_picture:
        mask = torch.ones(1, 1, *family.latent[2:])
        mask[:, :, 0] = 0
    if family.sound is not None:
        latent = comfy.nested_tensor.NestedTensor([latent, torch.zeros(family.sound)])
        if mask is not None:
            mask = comfy.nested_tensor.NestedTensor([mask, torch.ones(family.sound)])
    start = comfy.sample.prepare_noise(latent, 0)
    prompts = family.prompt(1), family.prompt(101)
    result: Any = euler(patcher, family.cfg, steps, start, prompts, latent, noise_mask=mask)
    parts = result.unbind() if getattr(result, "is_nested", False) else [result]
    return torch.cat([part.flatten().float().cpu() for part in parts])


def step_ms(patcher: Any, family: Family) -> float:
    """What one more step takes, with the sampler around it."""

    def seconds(steps: int) -> float:
        start = time.perf_counter()
        sample(patcher, family, steps)
        return time.perf_counter() - start

    seconds(3)
    short, long = (statistics.median(seconds(steps) for _ in range(5)) for steps in (1, 9))
    return (long - short) / 8 * 1e3
