"""Sessions of a VAE or of text encoders, each with our node and without it."""

from __future__ import annotations

import random
from collections.abc import Callable
from functools import partial
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
    name, make, drawn = _kind(plan)
    mine, theirs = make(), make()
    if drawn in (_pictured, _filmed):
        owner, fast = mine.first_stage_model, fast_compile.apply_vae(mine)
    else:
        owner, fast = mine.cond_stage_model, fast_compile.apply_clip(mine)
    return name, [fast, theirs], lambda: part_tools.part_calls(owner), [drawn(plan) for _ in range(2 * count)]


def _kind(plan: random.Random) -> tuple[str, Callable[[], Any], Callable[[random.Random], _Queue]]:
    kinds: list[Any] = [("a VAE", part_tools.vae, _pictured), ("a small VAE", part_tools.tiny_autoencoder, _pictured)]
    kinds += [(f"CLIP of {family}", partial(part_tools.clip, family), _written) for family in ("sd15", "sdxl")]
    models = part_tools.language_models()  # less Qwen2.5-VL, whose vision makes it large
    kinds += [(f"encoder of {name}", make, _counted) for name, make in models.items() if name != "qwen_image"]
    if part_tools.has_video_vae():
        kinds.append(("a video's VAE", part_tools.video_vae, _filmed))
    found: tuple[Any, ...] = plan.choice(kinds)
    return found  # type: ignore[return-value]


def _filmed(plan: random.Random) -> _Queue:
    frames, height, width, seed = plan.choice((1, 2, 3)), plan.choice((4, 6)), plan.choice((4, 5)), plan.randrange(3)
    way = plan.choice(("decode", "decode_tiled", "encode"))

    def compute(vae: Any) -> torch.Tensor:
        if way == "encode":
            given = noise(4 * frames - 3, height * 8, width * 8, 3)(seed).sigmoid()
            tiles = {}
        else:
            given = noise(1, 16, frames, height, width)(seed)
            tiles = {"tile_x": 4, "tile_y": 4, "overlap": 2, "tile_t": 2, "overlap_t": 1}
        found: torch.Tensor = getattr(vae, way)(given, **(tiles if way == "decode_tiled" else {}))
        return found

    return f"{way} of {frames} x {height} x {width}", compute


def _counted(plan: random.Random) -> _Queue:
    length, patched = plan.choice((3, 20, 40, 63, 64, 65, 100, 130)), plan.choice((None, None, (1.0, 1), (0.5, 2)))

    def compute(clip: Any) -> torch.Tensor:
        if patched:
            clip = comfy.sd.load_lora_for_models(None, clip, _lora(clip, patched[1]), 0.0, patched[0])[1]
        return part_tools.encode_length(clip, length)

    return f"{length} tokens, LoRA {patched}", compute


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
    keys, weights = comfy.lora.model_lora_keys_clip(clip.cond_stage_model, {}), clip.cond_stage_model.state_dict()
    names = {key: name for name, key in sorted(keys.items(), reverse=True) if isinstance(key, str) and key in weights}
    found = dict[str, torch.Tensor]()
    for number, (key, name) in enumerate(sorted(names.items())):
        if weights[key].dim() == 2 and "embed" not in key:
            rows, columns = weights[key].shape
            found[f"{name}.lora_up.weight"] = noise(rows, 4)(seed + number) * 0.3
            found[f"{name}.lora_down.weight"] = noise(4, columns)(seed + number + 1) / columns**0.5
    return found
