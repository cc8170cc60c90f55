"""LoRA files for any model, in the kinds in which they come."""

from __future__ import annotations

import math
import random
from typing import Any

import comfy.lora
import comfy.sd
import torch

from random_workflows.models import noise

_FLOATS = (torch.float32, torch.bfloat16, torch.float16)
_LARGEST = 2**21  #: numbers of a weight: patches of larger ones take seconds
KINDS = ("lora", "lora", "lora", "dora", "loha", "lokr", "diff", "alpha", "bias", "mid", "oft", "glora", "set")


def drawn(plan: random.Random) -> tuple[Any, ...]:
    """A LoRA as a node has it: kind, seed, share of the layers, strength."""
    return plan.choice(KINDS), plan.randrange(4), plan.choice((0.2, 0.6, 1.0)), plan.choice((1.0, 0.7, 0.3, -0.5, 1.5))


def loaded(model: Any, kind: str, seed: int, share: float, strength: float) -> Any:
    """What Load LoRA makes of a model patcher."""
    return comfy.sd.load_lora_for_models(model, None, file(model, kind, seed, share), strength, 0.0)[0]


def file(model: Any, kind: str, seed: int, share: float) -> dict[str, torch.Tensor]:
    """The LoRA of this seed for some of the model's layers, under the names that files have."""
    keys, plan, found = comfy.lora.model_lora_keys_unet(model.model, {}), random.Random(seed), dict[str, torch.Tensor]()
    names = {key: name for name, key in reversed(keys.items()) if isinstance(key, str)}  # the first name of each weight
    weights = dict(model.model.named_parameters())
    for key in sorted(names):
        shape = tuple(weights[key].shape) if key in weights and key.endswith(".weight") else ()
        if len(shape) < 2 or math.prod(shape) > _LARGEST or plan.random() > share or weights[key].dtype not in _FLOATS:
            continue
        bias = tuple(weights[of].shape) if (of := key.removesuffix("weight") + "bias") in weights else ()
        for number, (part, (size, scale, shift)) in enumerate(_parts(kind, shape, bias).items()):
            found[f"{names[key]}.{part}"] = noise(*size)(seed * 1000 + len(found) + number) * scale + shift
    return found


def _parts(kind: str, shape: tuple[int, ...], bias: tuple[int, ...]) -> dict[str, tuple[tuple[int, ...], float, float]]:
    """Each tensor of a layer's patch: its shape, its scale, and what is added to it."""
    rows, columns = shape[0], math.prod(shape[1:])
    rank, small, half = min(4, rows, columns), 1 / math.sqrt(columns), 1 if rows % 2 else 2
    down = (rank, *shape[1:]) if len(shape) > 2 else (rank, columns)
    up = (rows, rank, *[1] * (len(shape) - 2))
    low = {"lora_up.weight": (up, 0.2, 0.0), "lora_down.weight": (down, small, 0.0)}
    if kind == "dora":
        return {**low, "dora_scale": ((rows, *[1] * (len(shape) - 1)), 0.05, 1.0)}
    if kind == "loha":
        return {f"hada_w{one}_{side}": ((rows, rank) if side == "a" else (rank, columns), 0.3 if side == "a" else small, 0.0)
                for one in (1, 2) for side in "ab"}  # fmt: skip
    if kind == "lokr" and columns % 2 == 0 and len(shape) == 2:
        return {"lokr_w1": ((half, 2), 0.3, 0.0), "lokr_w2": ((rows // half, columns // 2), small, 0.0)}
    if kind == "alpha":
        return {**low, "alpha": ((), 0.0, rank / 2)}
    if kind == "bias" and bias:
        return {**low, "diff_b": (bias, 0.1, 0.0)}
    if kind == "mid" and len(shape) > 2:  # a convolution's, in Tucker's form
        sides = [1] * (len(shape) - 2)
        outer = {"lora_up.weight": (up, 0.2, 0.0), "lora_down.weight": ((rank, shape[1], *sides), small, 0.0)}
        return {**outer, "lora_mid.weight": ((rank, rank, *shape[2:]), 1.0, 0.0)}
    if kind == "oft" and rows % 4 == 0:
        return {"oft_blocks": ((4, rows // 4, rows // 4), 0.02, 0.0)}
    if kind == "glora" and len(shape) == 2:
        sides = {"a1": (columns, rank), "a2": (rank, columns), "b1": (rows, rank), "b2": (rank, columns)}
        return {f"{name}.weight": (size, small if name in ("a1", "b2") else 0.2, 0.0) for name, size in sides.items()}
    if kind == "set":
        return {"set_weight": (shape, small, 0.0)}
    if kind == "diff":
        return {"diff": (shape, 0.2 * small, 0.0)}
    return low
