"""What several scenario files share."""

from __future__ import annotations

from typing import Any

import comfy.sd
import tiny
import torch
from driver import prompt


def lora(model: Any, family: str, strength: float = 1.0, seed: int = 5) -> Any:
    """A clone with the family's LoRA, as the node Load LoRA makes it."""
    weights = tiny.lora(family, seed) if family != "sd3" else _sd3_lora(seed)
    return comfy.sd.load_lora_for_models(model, None, weights, strength, 0.0)[0]


def _sd3_lora(seed: int) -> dict[str, Any]:
    name, (rows, columns) = "lora_unet_final_layer_linear", (64, 128)
    up, down = tiny.noise((rows, 4), seed, 0.3), tiny.noise((4, columns), seed + 1, 0.1)
    return {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down}


def apply_model(model: Any, seed: int, batch: int = 2) -> torch.Tensor:
    """One call of a loaded patcher's BaseModel, with the wrappers that the patcher carries, without the sampler around it."""
    ((context, extra),) = prompt(model, 3)
    shape = (batch, model.model.latent_format.latent_channels, 8, 8)
    conditions = {"c_crossattn": context.expand(batch, -1, -1)}
    if "pooled_output" in extra:
        conditions["y"] = extra["pooled_output"].expand(batch, -1)
    options = {"wrappers": model.wrappers, "cond_or_uncond": [0], "sigmas": torch.full((1,), 0.5)}
    noise = tiny.noise((max(batch, 1), *shape[1:]), seed)[:batch]
    return model.model.apply_model(noise, torch.full((batch,), 0.5), transformer_options=options, **conditions)
