"""Sessions of a VAE or of text encoders, each with our node and without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import comfy.lora
import comfy.sd
import part_tools
import torch
from driver import fast_compile

from random_workflows.models import noise

_WORDS = (
    "a cat",
    "(red:1.3)",
    "[old]",
    "sofa",
    "((light))",
    "on the beach",
    "(blurred:0.4)",
    "one word after another, " * 9,
    "",
)
_Queue = tuple[str, Callable[[Any], torch.Tensor]]


def queues(plan: random.Random, count: int) -> tuple[str, list[Any], Callable[[], dict[str, int]], list[_Queue]]:
    """A session: its subject, the fast part and its plain twin, what counts the fast one's calls, and its queues, each
    with its name and what it computes of a part.
    """
    if plan.random() < 0.4:
        make = plan.choice((part_tools.vae, part_tools.tiny_autoencoder))
        mine, theirs = make(), make()
        owner, fast, drawn, subject = mine.first_stage_model, fast_compile.apply_vae(mine), _pictured, "a VAE"
    else:
        family = plan.choice(("sd15", "sdxl"))
        mine, theirs = part_tools.clip(family), part_tools.clip(family)
        owner, fast, drawn, subject = (
            mine.cond_stage_model,
            fast_compile.apply_clip(mine),
            _written,
            f"CLIP of {family}",
        )
    return subject, [fast, theirs], lambda: part_tools.part_calls(owner), [drawn(plan) for _ in range(2 * count)]


def _pictured(plan: random.Random) -> _Queue:
    height, width, batch = plan.choice((8, 9, 12, 20)), plan.choice((8, 11, 16)), plan.choice((1, 1, 2, 3))
    way, seed = plan.choice(("decode", "decode_tiled", "encode", "encode_tiled")), plan.randrange(3)

    def compute(vae: Any) -> torch.Tensor:
        if way.startswith("decode"):
            given, tiles = noise(batch, 4, height, width)(seed), {"tile_x": 8, "tile_y": 8, "overlap": 2}
        else:
            given, tiles = (
                noise(batch, height * 8, width * 8, 3)(seed).sigmoid(),
                {"tile_x": 64, "tile_y": 64, "overlap": 16},
            )
        found: torch.Tensor = getattr(vae, way)(given, **(tiles if way.endswith("tiled") else {}))
        return found

    return f"{way} of {batch} x {height} x {width}", compute


def _written(plan: random.Random) -> _Queue:
    text = ", ".join(plan.choice(_WORDS) for _ in range(plan.choice((1, 2, 4, 9))))
    skip, patched = plan.choice((None, None, -1, -2, -3)), plan.choice((None, None, (1.0, 1), (0.5, 1), (1.0, 2)))

    def compute(clip: Any) -> torch.Tensor:
        if patched:
            clip = comfy.sd.load_lora_for_models(None, clip, _lora(clip, patched[1]), 0.0, patched[0])[1]
        if skip is not None:
            clip = clip.clone()
            clip.clip_layer(skip)
        return torch.cat([each.flatten() for each in part_tools.encode(clip, text)])

    return f"{text!r}, skip {skip}, LoRA {patched}", compute


def _lora(clip: Any, seed: int) -> dict[str, torch.Tensor]:
    weights, found = dict(clip.cond_stage_model.named_parameters()), dict[str, torch.Tensor]()
    for number, (name, key) in enumerate(sorted(comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {}).items())):
        if isinstance(key, str) and key in weights and weights[key].dim() == 2 and name.startswith("lora_te"):
            rows, columns = weights[key].shape
            found[f"{name}.lora_up.weight"] = noise(rows, 4)(seed + number) * 0.3
            found[f"{name}.lora_down.weight"] = noise(4, columns)(seed + number + 1) / columns**0.5
    return found
