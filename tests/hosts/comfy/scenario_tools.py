"""What several scenario files share."""

from __future__ import annotations

from typing import Any

import comfy.sd
import tiny


def lora(model: Any, family: str, strength: float = 1.0, seed: int = 5) -> Any:
    """A clone with the family's LoRA, as the node Load LoRA makes it."""
    weights = tiny.lora(family, seed) if family != "sd3" else _sd3_lora(seed)
    return comfy.sd.load_lora_for_models(model, None, weights, strength, 0.0)[0]


def _sd3_lora(seed: int) -> dict[str, Any]:
    name, (rows, columns) = "lora_unet_final_layer_linear", (64, 128)
    up, down = tiny.noise((rows, 4), seed, 0.3), tiny.noise((4, columns), seed + 1, 0.1)
    return {f"{name}.lora_up.weight": up, f"{name}.lora_down.weight": down}
