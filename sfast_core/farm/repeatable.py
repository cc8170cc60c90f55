"""A pack without nodes, for the ComfyUI of a farm's worker: a picture's bytes don't depend on what was made before it.

ComfyUI computes a schedule's noise levels where the model's tables lie: on the CPU until the model has been loaded onto
the GPU, and there from then on. The two differ in the last bit, and so do a process's first picture and its later ones
of the same seed. Here they are computed on the CPU always, as for a first picture.

This file travels to the machines of a farm as it is, so of this package it needs nothing.
"""

from __future__ import annotations

import copy
import logging
from collections.abc import Callable
from typing import Any

import torch

NODE_CLASS_MAPPINGS: dict[str, type] = {}  #: which ComfyUI asks each pack for


def on_the_cpu(calculate_sigmas: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    """``comfy.samplers.calculate_sigmas``, given a copy of the model's tables on the CPU wherever they lie."""

    def calculate(model_sampling: Any, *arguments: Any, **named: Any) -> torch.Tensor:
        if isinstance(model_sampling, torch.nn.Module):
            model_sampling = copy.deepcopy(model_sampling).cpu()
        return calculate_sigmas(model_sampling, *arguments, **named)

    return calculate


try:
    import comfy.samplers

    comfy.samplers.calculate_sigmas = on_the_cpu(comfy.samplers.calculate_sigmas)
except (ImportError, AttributeError) as error:
    logging.warning("farm: a worker's first picture may differ from its later ones in the last bits: %s", error)
