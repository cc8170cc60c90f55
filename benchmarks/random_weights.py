"""Weights for models of any shape."""

from __future__ import annotations

from collections.abc import Mapping

import torch


def random_weights(shapes: Mapping[str, torch.Tensor], device: torch.device, seed: int) -> dict[str, torch.Tensor]:
    """Weights with which activations stay O(1), for a meta state dict's names and shapes; float16, on the CPU."""
    generator = torch.Generator(device).manual_seed(seed)
    weights = {}
    for key, parameter in shapes.items():
        if parameter.dim() > 1:
            drawn = torch.randn(parameter.shape, device=device, generator=generator) / parameter[0].numel() ** 0.5
        else:
            is_scale = key.endswith("weight")
            drawn = torch.full(parameter.shape, float(is_scale), device=device)
        weights[key] = drawn.half().cpu()
    return weights
