"""Conditioning as nodes between a text encoder and a sampler leave it."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import comfy.cldm.cldm
import comfy.controlnet
import comfy.hooks
import comfy.model_patcher
import comfy.ops
import torch

from random_workflows import loras
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
    """

    seed: int
    longer: float = 1.0
    region: tuple[str, int] | None = None
    steps: tuple[float, float] | None = None
    hook: tuple[Any, ...] | None = None
    keys: tuple[float, ...] = ()
    control: tuple[float, float, float, int] | None = None


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
            if subject.name == "SD1.5" and plan.random() < 0.3:
                more["control"] = (
                    plan.choice((1.0, 0.5)),
                    plan.choice((0.0, 0.3)),
                    plan.choice((1.0, 0.6)),
                    plan.randrange(3),
                )
        parts.append(Part(plan.randrange(5), **more))
    return tuple(parts)


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
            given["control"] = net.copy().set_cond_hint(hint, strength, (start, end))
            given["control_apply_to_uncond"] = True
        found.append([text, given])
    return found


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


def control_net(subject: Subject) -> Any:
    """A ControlNet for the family's UNet, whose zero convolutions aren't zero."""
    sizes = {
        name: value
        for name, value in subject.family.unet.items()
        if name not in ("out_channels", "transformer_depth_output")
    }
    with torch.inference_mode(False):
        inside = comfy.cldm.cldm.ControlNet(
            **sizes,
            hint_channels=3,
            dtype=torch.float32,
            device=torch.device("cpu"),
            operations=comfy.ops.disable_weight_init,
        )
        for number, weight in enumerate(inside.parameters()):
            scale = weight[0].numel() ** -0.5 if weight.dim() > 1 else 0.1
            weight.data = noise(*weight.shape)(number) * scale + float(weight.dim() < 2 and number % 2 == 0) * 0.5
    return comfy.controlnet.ControlNet(inside, load_device=torch.device("cpu"), manual_cast_dtype=None)
