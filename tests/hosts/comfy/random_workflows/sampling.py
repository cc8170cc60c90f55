"""How a latent is sampled: by which of ComfyUI's nodes, in how many parts, by one model or by two."""

from __future__ import annotations

from typing import Any

import comfy.sample
import comfy.samplers
import torch
from driver import node

#: All that this version has, less those whose steps have no end and the twins that only a GPU tells apart.
SAMPLERS = [
    name
    for name in comfy.samplers.SAMPLER_NAMES
    if name not in ("dpm_adaptive", "dpm_fast", "ar_video") and not name.endswith("_gpu")
]
SCHEDULERS = list(comfy.samplers.SCHEDULER_NAMES)
#: Guiders, and which of them want a negative prompt.
GUIDERS, GUIDED = ("cfg", "cfg", "basic"), ("cfg", "cfg", "basic", "dual", "perpendicular", "two models")


def sampled(
    workflow: Any, models: Any, both: list[Any], start: torch.Tensor, latent: torch.Tensor, mask: Any, denoise: float
) -> torch.Tensor:
    """The latent of one sampler's node, or of two in a row.

    Args:
        workflow: the sampler's inputs.
        models: the model, and what gives another of its family.
        both: the positive and the negative prompt.
        start: the noise.
        latent: what is sampled.
        mask: of what is drawn anew, or nothing.
        denoise: the share of the steps that is done.
    """  # fmt: skip
    model, other = models
    common: dict[str, Any] = {"noise_mask": mask, "disable_pbar": True, "seed": workflow.seed, "denoise": denoise}
    named = (workflow.cfg, workflow.sampler, workflow.scheduler, *both)
    if workflow.guider == "cfg" and not workflow.then:
        return comfy.sample.sample(model, start, workflow.steps, *named, latent, **common)
    if workflow.guider == "cfg":  # as KSampler (Advanced): the first leaves noise for the second
        half = (workflow.steps + 1) // 2
        latent = comfy.sample.sample(model, start, workflow.steps, *named, latent, last_step=half, **common)
        more = {"start_step": half, "disable_noise": True, "force_full_denoise": True}
        second = other() if workflow.then == "another" else model
        return comfy.sample.sample(second, torch.zeros_like(start), workflow.steps, *named, latent, **more, **common)
    sampler = comfy.samplers.sampler_object(workflow.sampler)
    sampling = model.get_model_object("model_sampling")
    sigmas = comfy.samplers.calculate_sigmas(sampling, workflow.scheduler, round(workflow.steps / denoise))
    found: torch.Tensor = _guider(workflow, model, other, *both).sample(
        *(start, latent, sampler, sigmas[-workflow.steps - 1 :]),
        **{"denoise_mask": mask, "disable_pbar": True, "seed": workflow.seed},
    )
    return found


def _guider(workflow: Any, model: Any, other: Any, positive: Any, negative: Any) -> Any:
    custom = "nodes_custom_sampler"
    if workflow.guider == "basic":
        return node(custom, "BasicGuider")(model, positive)
    if workflow.guider == "dual":
        return node(custom, "DualCFGGuider")(model, positive, negative[:1], negative, workflow.cfg, 2.0, "regular")
    if workflow.guider == "two models":
        return node(custom, "DualModelGuider")(model, positive, workflow.cfg, other(), negative)
    return node("nodes_perpneg", "PerpNegGuider")(model, positive, negative, negative[:1], workflow.cfg, 1.0)


def guiders(guided: bool) -> tuple[str, ...]:
    """What may guide a model; ``guided``: it computes a negative prompt."""
    import comfy_extras.nodes_custom_sampler as custom

    return tuple(
        name for name in (GUIDED if guided else GUIDERS) if name != "two models" or hasattr(custom, "DualModelGuider")
    )
