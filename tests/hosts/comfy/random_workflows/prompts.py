"""Conditioning as nodes between a text encoder and a sampler leave it."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass
from typing import Any

import comfy.hooks
import torch

from random_workflows import loras
from random_workflows.control_nets import hinted
from random_workflows.models import Subject, noise


@dataclass(frozen=True)
class Part:
    """One conditioning of a prompt.

    Attributes:
        seed: of its text.
        longer: how many times as many tokens as the family's prompts have.
        region: nothing, "area" or "mask", by this number.
        steps: the share of the sampling in which it holds.
        hook: a LoRA that holds for it alone, or nothing; ``keys``: its strengths over the sampling.
        control: a ControlNet's strength, span of steps and picture, or nothing.
        guidance: that of a model which was distilled for it, "off", or nothing: its default.
        references: how many pictures are referred to, and by which method.
        style: strength of a picture's tokens behind the text's, or nothing.
    """

    seed: int
    longer: float = 1.0
    region: tuple[str, int] | None = None
    steps: tuple[float, float] | None = None
    hook: tuple[Any, ...] | None = None
    keys: tuple[float, ...] = ()
    control: tuple[float, float, float, int] | None = None
    guidance: float | str | None = None
    references: tuple[int, str | None] | None = None
    style: float | None = None


def drawn(plan: random.Random, subject: Subject, plain: bool = False) -> tuple[Part, ...]:
    """A random prompt, of one part or more; ``plain``: of one alone, by its text."""
    parts = []
    for _ in range(1 if plain else plan.choice((1, 1, 1, 2, 2, 3))):
        more: dict[str, Any] = {"longer": plan.choice((1, 1, 1, 0.5, 2))} if not subject.family.more else {}
        if not plain:
            if parts and len(subject.family.latent) == 4 and not subject.name.startswith("Stable Video"):
                more["region"] = plan.choice((None, ("area", plan.randrange(3)), ("mask", plan.randrange(3))))
            if plan.random() < 0.15:
                more["steps"] = plan.choice(((0.0, 0.5), (0.5, 1.0), (0.2, 0.8)))
            if plan.random() < 0.15 and not subject.format:
                more |= {"hook": loras.drawn(plan), "keys": plan.choice(((), (1.0, 0.3), (0.0, 1.0, 0.5)))}
            if plan.random() < 0.3:
                spans = (0.0, 0.0, 0.3), (1.0, 1.0, 0.6)
                more["control"] = (plan.choice((1.0, 0.5)), *map(plan.choice, spans), plan.randrange(3))
        more |= _of_flux(plan, subject)
        parts.append(Part(plan.randrange(5), **more))
    return tuple(parts)


def _of_flux(plan: random.Random, subject: Subject) -> dict[str, Any]:
    """What nodes for Flux and its like put beside a text."""
    more: dict[str, Any] = {}
    if subject.name.startswith(("Flux", "Hunyuan Video")) and plan.random() < 0.3:
        more["guidance"] = plan.choice((2.5, 7.0, "off"))
    if "reference_latents" in subject.family.more and plan.random() < 0.3:
        methods = (None, "offset", "index", "uxo", "index_timestep_zero")
        more["references"] = plan.choice((0, 1, 2)), plan.choice(methods)
    if subject.name == "Flux" and plan.random() < 0.3:
        more["style"] = plan.choice((1.0, 0.5))
    return more


def conditioning(parts: tuple[Part, ...], subject: Subject, model: Any, net: Any, latent: torch.Tensor) -> list[Any]:
    """The conditioning of a prompt, made anew.

    Args:
        parts: the prompt.
        subject: the model's kind; ``model``: its patcher.
        net: a ControlNet, or nothing.
        latent: what is sampled.
    """
    found = []
    for part in parts:
        ((text, given),) = subject.family.prompt(part.seed * 10)
        if part.longer != 1:
            text = noise(1, max(1, round(text.shape[1] * part.longer)), text.shape[2])(part.seed)
        given = dict(given)
        if part.style:
            text, given = _with_style(text, given, part)
        if part.guidance is not None:
            given["guidance"] = None if part.guidance == "off" else part.guidance
        if part.references:
            given |= _references(*part.references, given)
        if part.region:
            given |= _region(*part.region, *latent.shape[-2:])
        if part.steps:
            given["start_percent"], given["end_percent"] = part.steps
        if part.hook:
            given["hooks"] = _hooked(part, model)
        if part.control and net is not None:
            strength, start, end, seed = part.control
            height, width = latent.shape[-2:]
            hint = noise(1, 3, height * 8, width * 8)(seed).sigmoid()
            given["control"] = hinted(net, subject, hint, strength, (start, end))
            given["control_apply_to_uncond"] = True
        found.append([text, given])
    return found


def _references(count: int, method: str | None, given: dict[str, Any]) -> dict[str, Any]:
    first = given["reference_latents"][0]
    pictures = [noise(*first.shape[:-1], first.shape[-1] - 4 * number)(number) for number in range(count)]
    return {"reference_latents": pictures, **({"reference_latents_method": method} if method else {})}


def _with_style(text: torch.Tensor, given: dict[str, Any], part: Part) -> tuple[torch.Tensor, dict[str, Any]]:
    """As Apply Style Model: tokens behind the text's, and below strength 1 a bias of who attends to them."""
    tokens = noise(1, 9, text.shape[2])(part.seed + 40)
    if part.style != 1.0:
        count, size = text.shape[1], text.shape[1] + tokens.shape[1]
        mask = torch.zeros(1, size + 1, size + 1, dtype=torch.float16)
        mask[:, :count, count:size] = mask[:, size:, count:size] = math.log(part.style or 1.0)
        given |= {"attention_mask": mask, "attention_mask_img_shape": (1, 1)}
    return torch.cat([text, tokens], dim=1), given


def _region(kind: str, number: int, height: int, width: int) -> dict[str, Any]:
    if kind == "area":
        rows, columns = ((height, width // 2), (height // 2, width), (height // 2, width // 2))[number]
        return {
            "area": (rows, columns, (height - rows) // 2, width - columns),
            "strength": 0.8,
            "set_area_to_bounds": False,
        }
    mask = torch.zeros(1, height, width)
    mask[:, : height * (number + 1) // 4, width // 3 :] = 1.0 - 0.2 * number
    return {"mask": mask, "mask_strength": 0.9, "set_area_to_bounds": number == 2}


def _hooked(part: Part, model: Any) -> Any:
    assert part.hook is not None
    *which, strength = part.hook
    hooks = comfy.hooks.create_hook_lora(lora=loras.file(model, *which), strength_model=strength, strength_clip=0.0)
    if part.keys:
        frames = comfy.hooks.HookKeyframeGroup()
        for number, factor in enumerate(part.keys):
            frames.add(comfy.hooks.HookKeyframe(strength=factor, start_percent=number / len(part.keys)))
        hooks.set_keyframes_on_hooks(frames)
    return hooks
